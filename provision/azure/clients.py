"""The SDK's clients, created on first use, and requests for which the SDK has no typed client."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from azure.core.exceptions import HttpResponseError
from azure.core.rest import HttpRequest
from azure.mgmt.core.exceptions import ARMErrorFormat

from gpuinfra.provision.azure.access import Access
from gpuinfra.provision.azure.errors import translated
from gpuinfra.provision.azure.transport import CONNECT_SECONDS, READ_SECONDS, Clock, RequestLimits, Retries
from gpuinfra.provision.errors import CloudError, Fault

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential
    from azure.mgmt.compute import ComputeManagementClient
    from azure.mgmt.network import NetworkManagementClient
    from azure.mgmt.resource.resources import ResourceManagementClient

T = TypeVar("T")
_lock = threading.RLock()


class ClientProperty(cached_property[T]):
    """A cached property that one thread at a time creates: concurrent imports of the SDK's modules block each other."""

    def __get__(self, instance: object, owner: type[Any] | None = None) -> T:  # type: ignore[override]
        """Return the client, created on first use."""
        with _lock:
            return super().__get__(instance, owner)


class Clients:
    """The compute, network and resource clients of one subscription, with one credential."""

    def __init__(self, access: Access, limits: RequestLimits | None = None, correlation_id: str | None = None) -> None:
        self.access, self.correlation_id = access, correlation_id
        self.limits = limits or RequestLimits()
        self.clock = Clock()
        # The SDK's warnings would appear between our lines. What matters reaches the user as a Problem.
        logging.getLogger("azure").addHandler(logging.NullHandler())

    @cached_property
    def credential(self) -> TokenCredential:
        """The credential for all requests."""
        from gpuinfra.provision.azure.credentials import make_credential

        return make_credential(self.access)

    @ClientProperty
    def compute(self) -> ComputeManagementClient:
        """The client for VMs, disks, sizes, quota and images."""
        from azure.mgmt.compute import ComputeManagementClient

        return ComputeManagementClient(self.credential, self.access.subscription, **self._options())

    @ClientProperty
    def network(self) -> NetworkManagementClient:
        """The client for VNets, public IPs, NICs and NSGs."""
        from azure.mgmt.network import NetworkManagementClient

        return NetworkManagementClient(self.credential, self.access.subscription, **self._options())

    @ClientProperty
    def resource(self) -> ResourceManagementClient:
        """The client for groups, providers, tags, and any resource by its ID."""
        from azure.mgmt.resource.resources import ResourceManagementClient

        return ResourceManagementClient(self.credential, self.access.subscription, **self._options())

    def _options(self) -> dict[str, Any]:
        headers = {"x-ms-correlation-request-id": self.correlation_id} if self.correlation_id else {}
        return {
            "base_url": self.access.arm,
            "credential_scopes": [self.access.scope],
            "retry_policy": Retries(self.limits),
            "per_retry_policies": [self.clock],
            "headers": headers,
            "connection_timeout": CONNECT_SECONDS,
            "read_timeout": READ_SECONDS,
            "logging_enable": False,
            **({"connection_verify": self.access.ca} if self.access.ca else {}),
        }


if TYPE_CHECKING:
    from azure.mgmt.resource.resources import ResourceManagementClient


class Requests:
    """A sender that uses the resource client, and so the same credential, retries and clock."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

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
            answer = self._clients.resource.send_request(HttpRequest(method, path, params=parameters, json=body))
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
