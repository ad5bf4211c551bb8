"""The SDK's clients, created on first use: importing them takes longer than most calls."""

from __future__ import annotations

import logging
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from gpuinfra.provision.azure.access import Access
from gpuinfra.provision.azure.transport import CONNECT_SECONDS, READ_SECONDS, Clock, RequestLimits, Retries

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
