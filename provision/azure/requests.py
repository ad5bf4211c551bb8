"""Requests to what has no typed client among the SDK's packages that are used."""

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
    """Sends them by the client of resources, so that credential, retries and clock are those of all others."""

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
        """One request, and the object that it is answered with."""
        parameters = {**({"api-version": api_version} if api_version else {}), **(query or {})}
        with translated(path):
            answer = self._client().send_request(HttpRequest(method, path, params=parameters, json=body))
            if answer.status_code >= 400:
                raise HttpResponseError(response=answer, error_format=ARMErrorFormat)
        try:
            found = answer.json() if answer.content else {}
        except ValueError as error:  # a proxy's page, most likely
            raise CloudError(Fault.UNREACHABLE, "NotJson", "the answer is not Azure's", subject=path) from error
        return found if isinstance(found, dict) else {}

    def pages(self, path: str, api_version: str, query: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """What is on all pages of a list. The link to the next one is complete."""
        page = self.send("GET", path, api_version, query=query)
        yield from page.get("value") or []
        while link := page.get("nextLink"):
            page = self.send("GET", link, None)
            yield from page.get("value") or []
