"""Implement the Cloud port with the Azure SDK: one call per operation and resource kind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from azure.core import MatchConditions
from azure.core.exceptions import AzureError
from azure.mgmt.core.polling.arm_polling import ARMPolling

from gpuinfra.models.names import OUR_PREFIX
from gpuinfra.models.plan import Kind, Power, Ref, Resource
from gpuinfra.provision import agent_role, tags
from gpuinfra.provision.azure.clients import Clients, Requests, translate, translated
from gpuinfra.provision.azure.fleet import AzureFleet, ref_from_id
from gpuinfra.provision.azure.rights import Rights
from gpuinfra.provision.cloud import Fleet, Operation
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.locks import PROVIDER, Lock
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource, same
from gpuinfra.provision.ownership import Owner, is_namesake, machine_of_row, owner_of
from gpuinfra.provision.tags import default_group, ref_of
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


WORKERS = 10
LOCKS_VERSION = "2016-09-01"


class AzureCloud:
    """One Azure subscription. Every method raises only CloudError."""

    def __init__(self, clients: Clients) -> None:
        self.clients, access = clients, clients.access
        self.subscription, self.simulated = access.subscription, access.simulated
        self.endpoint, self.ssh_port = access.arm, access.ssh_port
        self.fleet: Fleet = AzureFleet(clients)
        self.interrupt = clients.limits.interrupt
        self._calls = Calls(clients)

    @property
    def deadline(self) -> Deadline:
        return self.clients.limits.deadline

    def grant(self, seconds: float) -> Deadline:
        self.clients.limits.deadline = Deadline.after(seconds)
        return self.deadline

    def now(self) -> datetime:
        return self.clients.clock.now()

    # Read

    def observe(self, name: str, group: str | None = None, *, thorough: bool = False) -> Observed:
        # Import here, in one thread: concurrent imports of the SDK's modules block each other.
        self._calls.prepare()
        pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="look")
        try:
            return self._observe(name, group, pool, thorough=thorough)
        except FutureTimeoutError:
            raise CloudError(Fault.TIMEOUT, "Timeout", "Azure does not answer", subject=name) from None
        finally:
            # Do not wait: after Ctrl-C or a deadline, a missing response must not block the user.
            pool.shutdown(wait=False, cancel_futures=True)

    def _observe(self, name: str, group: str | None, pool: ThreadPoolExecutor, *, thorough: bool) -> Observed:
        deadline = self.deadline
        tagged = pool.submit(self._tagged, name)
        # Azure's tag index lags by minutes, but the list of VMs does not, and no VM may be missed.
        machines = pool.submit(self._machines, name) if thorough or group is None else None
        listed = machines.result(deadline.left) if machines else []
        group = group or _group_of(name, listed)
        named = [ref_of(kind, group, name) for kind in Kind]
        looks = [pool.submit(self.look, ref) for ref in named]
        unknown, others = tagged.result(deadline.left)
        looks += [pool.submit(self.look, ref) for ref in _beyond(named, [*(part.ref for part in listed), *others])]
        found = [look.result(deadline.left) for look in looks]
        return Observed(name, group, tuple(part for part in found if part), unknown)

    def _machines(self, name: str) -> list[ObservedResource]:
        """Return the machines with this name in their tag, and those with this name that lost it, in any group."""
        with translated("machines"):
            rows = [_plain(each) for each in self.clients.compute.virtual_machines.list_all()]
        return [
            part for part in map(machine_of_row, rows) if tags.belongs_to(part.tags, name) or is_namesake(part, name)
        ]

    def _tagged(self, name: str) -> tuple[tuple[str, ...], list[Ref]]:
        with translated("resources"):
            ids = [str(each.id) for each in self.clients.resource.resources.list(filter=_tag_filter(name))]
        refs = [(each, ref_from_id(each)) for each in ids]
        return tuple(each for each, ref in refs if ref is None), [ref for _, ref in refs if ref]

    def look(self, ref: Ref) -> ObservedResource | None:
        try:
            with translated(str(ref)):
                return ObservedResource(ref, _plain(self._calls.get(ref)))
        except CloudError as error:
            if error.fault is Fault.ABSENT and error.code not in {"SubscriptionNotFound", "InvalidSubscriptionId"}:
                return None
            raise

    def contents(self, group: str) -> tuple[str, ...]:
        try:
            with translated(f"group {group}"):
                return tuple(str(each.id) for each in self.clients.resource.resources.list_by_resource_group(group))
        except CloudError as error:
            if error.fault is Fault.ABSENT:
                return ()
            raise

    def locks(self) -> tuple[Lock, ...]:
        path = f"/subscriptions/{self.subscription}{PROVIDER}"
        try:
            found = list(Requests(self.clients).pages(path, LOCKS_VERSION))
        except CloudError as error:
            if error.fault is Fault.INTERRUPTED:
                raise
            return ()  # a role may not include it
        return tuple(Lock(str(each["id"]), str(each["properties"]["level"])) for each in found)

    # Write

    def put(self, resource: Resource, *, new: bool = False) -> Operation:
        with translated(str(resource.ref)):
            return AzureOperation(resource.ref, self._calls.put(resource.ref, _with_secrets(resource), new=new))

    def patch(self, resource: Resource) -> Operation:
        with translated(str(resource.ref)):
            return AzureOperation(resource.ref, self._calls.patch(resource.ref, _with_secrets(resource)))

    def act(self, ref: Ref, power: Power) -> Operation:
        with translated(str(ref)):
            return AzureOperation(ref, self._calls.act(ref, power.value))

    def delete(self, ref: Ref) -> Operation:
        try:
            with translated(str(ref)):
                return AzureOperation(ref, self._calls.delete(ref))
        except CloudError as error:
            if error.fault is Fault.ABSENT:
                return AzureOperation(ref)
            raise

    def allow_self_stop(self, machine: ObservedResource) -> agent_role.AgentRole:
        try:
            found = machine if agent_role.principal_of(machine) else self.look(machine.ref)
        except CloudError as error:
            return agent_role.refused(error, agent_role.ASSIGNS_ROLES)
        return Rights(self.clients).grant(found or machine)

    def agent_role(self, machine: ObservedResource) -> agent_role.AgentRole:
        return Rights(self.clients).look(machine)

    def disown(self, group: str) -> None:
        groups = self.clients.resource.resource_groups
        try:
            with translated(f"group {group}"):
                found = groups.get(group)
                kept = {name: value for name, value in (found.tags or {}).items() if not _is_our_tag(name)}
                groups.update(group, {"tags": kept})
        except CloudError as error:
            if error.fault is not Fault.ABSENT:
                raise

    def wait(self, operation: Operation, deadline: Deadline) -> None:
        assert isinstance(operation, AzureOperation)  # noqa: S101 this class returns only these
        operation.wait(deadline, self.interrupt)


def _beyond(known: list[Ref], refs: list[Ref]) -> list[Ref]:
    """Return the references that are not known yet, without duplicates."""
    beyond: list[Ref] = []
    for ref in refs:
        if not any(same(ref, other) for other in (*known, *beyond)):
            beyond.append(ref)
    return beyond


def _group_of(name: str, machines: list[ObservedResource]) -> str:
    """Return the group of our machine with this name, or the default group if there is not exactly one such machine."""
    own = [part.ref.group for part in machines if owner_of(part) is Owner.OURS]
    # Anyone can tag a group, so a tagged group without the VM does not count.
    return own[0] if len(own) == 1 else default_group(name)


def _tag_filter(name: str) -> str:
    return f"tagName eq '{tags.NAME}' and tagValue eq '{name}'"


def _is_our_tag(name: str) -> bool:
    return name.casefold().startswith(OUR_PREFIX)


def _plain(model: Any) -> dict[str, Any]:
    plain: dict[str, Any] = model if isinstance(model, dict) else model.as_dict()
    return plain


def _with_secrets(resource: Resource) -> dict[str, Any]:
    """Return the whole body with its secrets, for one request. It is not stored."""
    if not resource.secrets:
        return resource.body
    properties = dict(resource.body.get("properties") or {})
    for section, secret in resource.secrets.items():
        properties[section] = {**(properties.get(section) or {}), **secret}
    return {**resource.body, "properties": properties}
