"""Delete resources, the VM first, without what others attached, and verify that each is gone."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gpuinfra.models.plan import Kind, Ref, Resource
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.observed import NOT_MADE
from gpuinfra.provision.observed_resource import ObservedResource, refers_to
from gpuinfra.provision.power import BILLED, DEALLOCATED
from gpuinfra.provision.tags import machine_of_group, machine_of_schedule, ref_of, same_name
from gpuinfra.provision.task import Task
from gpuinfra.provision.waiting import run_steps


def attached_by_others(machine: ObservedResource, nic: ObservedResource | None) -> tuple[str, ...]:
    """Describe the disks, NICs and (on the own NIC) public IPs that gpuinfra did not create, each with its group."""
    attached = [(kind, entry) for kind, entry in _entries(machine) if not _is_ours(kind, entry, machine)]
    addresses = [(Kind.PUBLIC_IP, address) for address in _addresses(nic) if not _is_own_address(address, machine)]
    return tuple(_describe(kind, entry) for kind, entry in (*attached, *addresses))


def dissociating_update(machine: ObservedResource, nic: ObservedResource | None) -> Resource | None:
    """Return the machine's own NIC without the public IPs of others, or None if it has none.

    The NIC's settings decide whether Azure deletes these IPs with the VM. Not every API version shows that setting.
    """
    if nic is None or all(_is_own_address(address, machine) for address in _addresses(nic)):
        return None
    configurations = [_without_foreign_address(each, machine) for each in _configurations(nic)]
    return Resource(nic.ref, {**nic.body, "properties": {**nic.properties, "ipConfigurations": configurations}})


def detaching_update(machine: ObservedResource) -> Resource | None:
    """Return the update after which Azure keeps the attachments when it deletes the VM, or None if none is needed.

    The VM's delete options decide this: https://learn.microsoft.com/azure/virtual-machines/delete
    """
    changed = {kind for kind, entry in _entries(machine) if _is_at_risk(kind, entry, machine)}
    if not changed:
        return None
    properties: dict[str, Any] = {}
    if Kind.DISK in changed:
        disks = [{**disk, "deleteOption": "Detach"} for disk in _data_disks(machine)]
        properties["storageProfile"] = {"dataDisks": disks}
        if _is_at_risk(Kind.DISK, machine.os_disk, machine):
            properties["storageProfile"]["osDisk"] = {**machine.os_disk, "deleteOption": "Detach"}
    if Kind.NIC in changed:
        nics = [_detached(nic, machine) for nic in machine.nics]
        properties["networkProfile"] = {"networkInterfaces": nics}
    return Resource(machine.ref, {"properties": properties})


def _entries(machine: ObservedResource) -> Iterator[tuple[Kind, dict[str, Any]]]:
    yield from ((Kind.DISK, disk) for disk in (machine.os_disk, *_data_disks(machine)) if disk)
    yield from ((Kind.NIC, nic) for nic in machine.nics)


def _data_disks(machine: ObservedResource) -> list[dict[str, Any]]:
    return (machine.properties.get("storageProfile") or {}).get("dataDisks") or []


def _id(kind: Kind, entry: dict[str, Any]) -> str:
    return str(((entry.get("managedDisk") or {}) if kind is Kind.DISK else entry).get("id") or "")


def _is_ours(kind: Kind, entry: dict[str, Any], machine: ObservedResource) -> bool:
    own, found = ref_of(kind, machine.ref.group, machine.ref.name), _id(kind, entry)
    # Azure shows the ID of a new disk only after the disk exists.
    return refers_to(found, own) if found else same_name(entry.get("name"), own.name)


def _configurations(nic: ObservedResource | None) -> list[dict[str, Any]]:
    return list(nic.properties.get("ipConfigurations") or []) if nic else []


def _address(configuration: dict[str, Any]) -> dict[str, Any]:
    return (configuration.get("properties") or {}).get("publicIPAddress") or {}


def _addresses(nic: ObservedResource | None) -> list[dict[str, Any]]:
    return [address for each in _configurations(nic) if (address := _address(each))]


def _is_own_address(address: dict[str, Any], machine: ObservedResource) -> bool:
    return refers_to(address.get("id"), ref_of(Kind.PUBLIC_IP, machine.ref.group, machine.ref.name))


def _without_foreign_address(configuration: dict[str, Any], machine: ObservedResource) -> dict[str, Any]:
    address, inner = _address(configuration), configuration.get("properties") or {}
    if not address or _is_own_address(address, machine):
        return configuration
    return {**configuration, "properties": {name: inner[name] for name in inner if name != "publicIPAddress"}}


def _option(entry: dict[str, Any]) -> str:
    return str((entry.get("properties") or entry).get("deleteOption") or "").casefold()


def _is_at_risk(kind: Kind, entry: dict[str, Any], machine: ObservedResource) -> bool:
    return _option(entry) == "delete" and not _is_ours(kind, entry, machine)


def _detached(nic: dict[str, Any], machine: ObservedResource) -> dict[str, Any]:
    if not _is_at_risk(Kind.NIC, nic, machine):
        return nic
    return {**nic, "properties": {**(nic.get("properties") or {}), "deleteOption": "Detach"}}


def _describe(kind: Kind, entry: dict[str, Any]) -> str:
    words = _id(kind, entry).split("/")
    place = f" in group {words[4]}" if len(words) > 4 else ""
    return f"{kind} {words[-1] or entry.get('name')}{place}"


UNREACHABLE_SECONDS = 300.0
REMOVE_SECONDS = 1200.0
# The reverse of the creation order: a resource is deleted before those that it uses.
_AFTER: dict[Kind, tuple[Kind, ...]] = {
    Kind.VM: (),
    # While the VM exists, something must be able to stop it.
    Kind.SHUTDOWN_SCHEDULE: (Kind.VM,),
    Kind.DISK: (Kind.VM,),
    Kind.NIC: (Kind.VM,),
    Kind.PUBLIC_IP: (Kind.VM, Kind.NIC),
    Kind.NSG: (Kind.VM, Kind.NIC),
    Kind.VNET: (Kind.VM, Kind.NIC),
    Kind.RESOURCE_GROUP: tuple(kind for kind in Kind if kind is not Kind.RESOURCE_GROUP),
}


def strangers(others: Iterable[str], going: Iterable[Ref], subscription: str) -> list[str]:
    """Return the IDs in a group that belong to none of these resources. A child resource belongs to its parent."""
    ids = [ref.id(subscription).casefold() for ref in going if ref.kind is not Kind.RESOURCE_GROUP]
    return [
        other
        for other in others
        if not any(other.casefold() == each or other.casefold().startswith(f"{each}/") for each in ids)
    ]


IsOurs = Callable[[ObservedResource], bool]


def _any(_machine: ObservedResource) -> bool:
    return True


def remove(task: Task, refs: Iterable[Ref], is_ours: IsOurs = _any) -> None:
    """Delete all these resources and verify that they are gone. An absent resource counts as gone.

    `is_ours` says whether the VM with this name is the one to delete: another client may have created one meanwhile.
    """
    if stays := _remove_all(task, refs, is_ours):
        raise next(iter(stays.values()))


def remove_unused(task: Task, refs: Iterable[Ref], is_ours: IsOurs) -> list[Ref]:
    """Delete the resources that no other resource or client uses, and return the rest. A group stays with any."""
    stays = _remove_all(task, refs, is_ours)
    if failures := [error for error in stays.values() if error.fault is not Fault.IN_USE]:
        raise failures[0]
    return list(stays)


def _remove_all(task: Task, refs: Iterable[Ref], is_ours: IsOurs) -> dict[Ref, CloudError]:
    """Delete in order, and return the resources that stay with the reason. They keep what is deleted after them."""
    going = list(dict.fromkeys(refs))
    needs = {ref: [other for other in going if other.kind in _AFTER[ref.kind]] for ref in going}
    stays: dict[Ref, CloudError] = {}

    def step(ref: Ref) -> None:
        try:
            if blocking := [stays[need] for need in needs[ref] if need in stays]:
                raise blocking[0]
            _Removal(task.within(REMOVE_SECONDS), ref, going, is_ours).run()
        except CloudError as error:
            if error.fault is Fault.INTERRUPTED:
                raise
            stays[ref] = error

    run_steps({ref: partial(step, ref) for ref in going}, needs, task.cloud.interrupt)
    return stays


@dataclass
class _Removal:
    """The removal of one resource. Another client may create it again at any time, so each attempt looks first."""

    task: Task
    ref: Ref
    going: Sequence[Ref]
    is_ours: IsOurs
    _identity: str | None = None
    """The identity of the resource to delete, from the first look."""
    _was_off: bool = False
    """Whether it was a deallocated VM at the first look."""

    def run(self) -> None:
        """Delete the resource, and verify that it is gone."""
        task, ref = self.task, self.ref
        if ref.kind is Kind.VM:
            _keep_attached(task, ref)
        with task.step(ref, "deleting", "deleted"):
            try:
                task.retry(self._attempt, UNREACHABLE_SECONDS)
            except CloudError as error:
                # Azure may have lost the operation, not the resource. The next look shows whether it is gone.
                if error.fault is not Fault.ABSENT:
                    raise
            # Azure can show a resource for a moment after reporting it as deleted.
            if not task.wait_until(lambda: not self._exists()):
                raise CloudError(Fault.TIMEOUT, "StillThere", "deleted, and Azure still shows it", subject=str(ref))

    def _attempt(self) -> None:
        cloud, ref = self.task.cloud, self.ref
        if not self._exists():
            return
        if ref.kind is Kind.RESOURCE_GROUP:
            _check_only_ours(cloud, ref, self.going)
        if ref.kind is Kind.SHUTDOWN_SCHEDULE and cloud.look(ref_of(Kind.VM, ref.group, machine_of_schedule(ref.name))):
            # While the VM exists, something must be able to stop it.
            raise self._in_use("its VM exists")
        cloud.wait(cloud.delete(ref), self.task.deadline)

    def _exists(self) -> bool:
        """Return whether the resource exists. Raise CloudError if another client created it again, or started it."""
        found = self.task.cloud.look(self.ref)
        if found is None:
            return False
        if self._identity is None and (self.ref.kind is not Kind.VM or self.is_ours(found)):
            self._identity, self._was_off = found.identity, found.power == DEALLOCATED
        if found.identity != self._identity:
            raise self._in_use("another client created it again; it was not deleted")
        if self._was_off and found.power in BILLED:
            # What was known of its runs is no longer true: a new one may have outputs that are not fetched.
            raise self._in_use("another client started it since it was checked; it was not deleted")
        return True

    def _in_use(self, why: str) -> CloudError:
        return CloudError(Fault.IN_USE, "InUse", why, subject=str(self.ref))


def _check_only_ours(cloud: Cloud, group: Ref, going: Iterable[Ref]) -> None:
    """Raise CloudError if the group contains other resources by now: deleting a group deletes its contents.

    Azure's list may lack a new resource, so look also for each resource that another `up` of the machine creates.
    """
    names = [each.rsplit("/", 1)[-1] for each in strangers(cloud.contents(group.group), going, cloud.subscription)]
    own = [ref_of(kind, group.group, machine_of_group(group.group)) for kind in Kind if kind is not Kind.RESOURCE_GROUP]
    names += [ref.name for ref in own if cloud.look(ref)]
    if names:
        listed = ", ".join(sorted(dict.fromkeys(names)))
        raise CloudError(Fault.IN_USE, "GroupNotEmpty", f"{NOT_MADE}: {listed}", subject=str(group))


def _keep_attached(task: Task, ref: Ref) -> None:
    """Make sure that Azure keeps what others attached when it deletes the VM."""
    cloud = task.cloud

    def attempt() -> None:
        machine, nic = cloud.look(ref), cloud.look(ref_of(Kind.NIC, ref.group, ref.name))
        if machine is None:
            return
        update, without_addresses = detaching_update(machine), dissociating_update(machine, nic)
        if update or without_addresses:
            task.progress.note(f"kept: {', '.join(attached_by_others(machine, nic))}")
        if update:
            cloud.wait(cloud.patch(update), task.deadline)
        if without_addresses:
            cloud.wait(cloud.put(without_addresses), task.deadline)

    task.retry(attempt, UNREACHABLE_SECONDS)
