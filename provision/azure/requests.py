"""Send requests for which the installed SDK packages have no typed client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from azure.core.exceptions import HttpResponseError
from azure.core.rest import HttpRequest
from azure.mgmt.core.exceptions import ARMErrorFormat

from gpuinfra.provision.azure.errors import translated
from gpuinfra.provision.errors import CloudError, Fault

if TYPE_CHECKING:
    from azure.mgmt.resource.resources import ResourceManagementClient


class Requests:
    """A sender that uses the resource client, and so the same credential, retries and clock."""

    def __init__(self, client: Callable[[], ResourceManagementClient]) -> None:
        self._client = client

    def send(
        self,
        method: str,
        path: str,
        api_version: str | None,
        body: dict[str, Any] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Send one request, and return the JSON object in the response."""
        parameters = {**({"api-version": api_version} if api_version else {}), **(query or {})}
        with translated(path):
            answer = self._client().send_request(HttpRequest(method, path, params=parameters, json=body))
            if answer.status_code >= 400:
                raise HttpResponseError(response=answer, error_format=ARMErrorFormat)
        try:
            found = answer.json() if answer.content else {}
        except ValueError as error:  # most likely a proxy's error page
            raise CloudError(Fault.UNREACHABLE, "NotJson", "the answer is not Azure's", subject=path) from error
        return found if isinstance(found, dict) else {}

    def pages(self, path: str, api_version: str, query: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """Iterate over the items on all pages of a list. The link to the next page is a complete URL."""
        page = self.send("GET", path, api_version, query=query)
        yield from page.get("value") or []
        while link := page.get("nextLink"):
            page = self.send("GET", link, None)
            yield from page.get("value") or []
