"""The SDK's clients, made when they are needed: importing them takes longer than most calls."""

from __future__ import annotations

import logging
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpuinfra.provision.azure.access import Access
from gpuinfra.provision.azure.transport import CONNECT_SECONDS, READ_SECONDS, Clock, Patience, Retries

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential
    from azure.mgmt.compute import ComputeManagementClient
    from azure.mgmt.network import NetworkManagementClient
    from azure.mgmt.resource.resources import ResourceManagementClient


class Clients:
    """Compute, network and resources of one subscription, by one credential."""

    def __init__(self, access: Access, patience: Patience | None = None, correlation_id: str | None = None) -> None:
        self.access, self.correlation_id = access, correlation_id
        self.patience = patience or Patience()
        self.clock = Clock()
        # The SDK's own warnings would appear between our lines; what matters reaches the user as a problem.
        logging.getLogger("azure").addHandler(logging.NullHandler())

    @cached_property
    def credential(self) -> TokenCredential:
        """Who asks."""
        from gpuinfra.provision.azure.credentials import make_credential

        return make_credential(self.access)

    @cached_property
    def compute(self) -> ComputeManagementClient:
        """Machines, disks, sizes, quota, images."""
        from azure.mgmt.compute import ComputeManagementClient

        return ComputeManagementClient(self.credential, self.access.subscription, **self._options())

    @cached_property
    def network(self) -> NetworkManagementClient:
        """Networks, addresses, interfaces, security groups."""
        from azure.mgmt.network import NetworkManagementClient

        return NetworkManagementClient(self.credential, self.access.subscription, **self._options())

    @cached_property
    def resource(self) -> ResourceManagementClient:
        """Groups, providers, tags, and any resource by its id."""
        from azure.mgmt.resource.resources import ResourceManagementClient

        return ResourceManagementClient(self.credential, self.access.subscription, **self._options())

    def _options(self) -> dict[str, Any]:
        headers = {"x-ms-correlation-request-id": self.correlation_id} if self.correlation_id else {}
        return {
            "base_url": self.access.arm,
            "credential_scopes": [self.access.scope],
            "retry_policy": Retries(self.patience),
            "per_retry_policies": [self.clock],
            "headers": headers,
            "connection_timeout": CONNECT_SECONDS,
            "read_timeout": READ_SECONDS,
            "logging_enable": False,
            **({"connection_verify": self.access.ca} if self.access.ca else {}),
        }
