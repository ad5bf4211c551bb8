"""Map each operation and resource kind to a call of the SDK, and poll long-running operations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import AzureError
from azure.mgmt.core.polling.arm_polling import ARMPolling

from gpuinfra.models.resource import Kind, Ref
from gpuinfra.provision.azure.clients import Clients
from gpuinfra.provision.azure.errors import translate
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.waiting import Deadline, Interrupt

SCHEDULES_VERSION = "2018-09-15"
IF_NEW = {"If-None-Match": "*"}


class Calls:
    """The SDK's operations by resource kind."""

    def __init__(self, clients: Clients) -> None:
        self.clients = clients

    def prepare(self) -> None:
        """Import and create all clients."""
        _ = self.clients.resource, self.clients.compute, self.clients.network

    def _operations(self, kind: Kind) -> Any:
        network, compute = self.clients.network, self.clients.compute
        return {
            Kind.NSG: network.network_security_groups,
            Kind.VNET: network.virtual_networks,
            Kind.PUBLIC_IP: network.public_ip_addresses,
            Kind.NIC: network.network_interfaces,
            Kind.VM: compute.virtual_machines,
            Kind.DISK: compute.disks,
        }[kind]

    def get(self, ref: Ref) -> Any:
        """Return the resource as Azure shows it."""
        match ref.kind:
            case Kind.RESOURCE_GROUP:
                return self.clients.resource.resource_groups.get(ref.group)
            case Kind.SHUTDOWN_SCHEDULE:
                return self.clients.resource.resources.get_by_id(self._id(ref), api_version=SCHEDULES_VERSION)
            case Kind.VM:
                return self.clients.compute.virtual_machines.get(ref.group, ref.name, expand="instanceView")
            case kind:
                return self._operations(kind).get(ref.group, ref.name)

    def put(self, ref: Ref, body: dict[str, Any], *, new: bool) -> Any:
        """Create or replace a resource. Return a poller, or None if the operation is already finished."""
        match ref.kind:
            case Kind.RESOURCE_GROUP:
                self.clients.resource.resource_groups.create_or_update(ref.group, body)
                return None
            case Kind.SHUTDOWN_SCHEDULE:
                return self.clients.resource.resources.begin_create_or_update_by_id(
                    self._id(ref), body, api_version=SCHEDULES_VERSION, polling=self._pace()
                )
            case kind:
                # Two clients that create the same machine must not create it twice.
                condition: dict[str, Any] = {}
                if new:
                    # The network clients have no match conditions, but accept headers.
                    is_vm = kind is Kind.VM
                    condition = {"match_condition": MatchConditions.IfMissing} if is_vm else {"headers": IF_NEW}
                return self._operations(kind).begin_create_or_update(
                    ref.group, ref.name, body, polling=self._pace(), **condition
                )

    def patch(self, ref: Ref, body: dict[str, Any]) -> Any:
        """Change the fields in the body. Return a poller, or None if the operation is already finished."""
        if ref.kind is Kind.PUBLIC_IP and "properties" in body:
            return self.put(ref, body, new=False)
        if ref.kind is Kind.PUBLIC_IP:
            self._operations(ref.kind).update_tags(ref.group, ref.name, body)
            return None
        return self._operations(ref.kind).begin_update(ref.group, ref.name, body, polling=self._pace())

    def act(self, ref: Ref, act: str) -> Any:
        """Start or deallocate a VM, and return a poller."""
        begin = getattr(self.clients.compute.virtual_machines, f"begin_{act}")
        return begin(ref.group, ref.name, polling=self._pace())

    def delete(self, ref: Ref) -> Any:
        """Delete a resource, and return a poller."""
        match ref.kind:
            case Kind.RESOURCE_GROUP:
                return self.clients.resource.resource_groups.begin_delete(ref.group, polling=self._pace())
            case Kind.SHUTDOWN_SCHEDULE:
                return self.clients.resource.resources.begin_delete_by_id(
                    self._id(ref), api_version=SCHEDULES_VERSION, polling=self._pace()
                )
            case kind:
                return self._operations(kind).begin_delete(ref.group, ref.name, polling=self._pace())

    def _id(self, ref: Ref) -> str:
        return ref.id(self.clients.access.subscription)

    def _pace(self) -> Pace:
        return Pace(self.clients.access.arm)


# Azure's hint can be 50 s for a VM, which wastes time. Its limit is 45 polls per minute. A shorter hint than these
# values is used as it is: the sandbox sends such hints.
MIN_PAUSE, MAX_PAUSE, GROWTH = 0.4, 1.5, 1.2
# How often a wait checks for Ctrl-C, in seconds.
LOOK = 0.25


class Pace(ARMPolling):
    """A polling method that starts fast and slows down to MAX_PAUSE seconds."""

    def __init__(self, arm: str) -> None:
        super().__init__(
            lro_options={"final-state-via": "azure-async-operation"}, path_format_arguments={"endpoint": arm}
        )
        self._pause = MIN_PAUSE

    def _extract_delay(self) -> float:
        pause = min(float(super()._extract_delay()), self._pause)
        self._pause = min(MAX_PAUSE, self._pause * GROWTH)
        return pause


@dataclass(frozen=True)
class AzureOperation:
    """An operation that the SDK polls; the poller is None if it was finished at once."""

    ref: Ref
    poller: Any = None

    def wait(self, deadline: Deadline, interrupt: Interrupt) -> None:
        """Wait until the operation is finished. Raise CloudError on failure or timeout."""
        if self.poller is None:
            return
        try:
            while not self.poller.done() and not deadline.is_over:
                interrupt.check(str(self.ref))
                self.poller.wait(min(LOOK, deadline.left))
            self.poller.wait(0)  # raises the error that ended the operation
        except AzureError as error:
            raise translate(error, str(self.ref)) from error
        if not self.poller.done():
            raise CloudError(Fault.TIMEOUT, "Timeout", "Azure did not finish in time", subject=str(self.ref))
