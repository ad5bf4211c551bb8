"""Implement the Cloud port with the Azure SDK."""

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from datetime import datetime
from typing import Any

from gpuinfra.models.names import OUR_PREFIX
from gpuinfra.models.plan import Power
from gpuinfra.models.resource import Kind, Ref, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.azure.calls import AzureOperation, Calls
from gpuinfra.provision.azure.clients import Clients
from gpuinfra.provision.azure.errors import translated
from gpuinfra.provision.azure.fleet import AzureFleet, ref_from_id
from gpuinfra.provision.azure.rights import Rights
from gpuinfra.provision.cloud import Fleet, Operation
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.lifecycle import agent_role
from gpuinfra.provision.names import default_group, ref_of
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource, same
from gpuinfra.provision.ownership import Owner, is_namesake, machine_of_row, owner_of
from gpuinfra.provision.waiting import Deadline

WORKERS = 10


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
