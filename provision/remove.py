"""Delete resources, the VM first, and verify that each is gone."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from gpuinfra.models.resource import Kind, Ref
from gpuinfra.provision.attachments import attached_by_others, detaching_update, dissociating_update
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.names import ref_of
from gpuinfra.provision.observed import NOT_MADE
from gpuinfra.provision.task import Task
from gpuinfra.provision.waiting import run_steps

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


def remove(task: Task, refs: Iterable[Ref]) -> None:
    """Delete all these resources and verify that they are gone. An absent resource counts as gone."""
    going = list(dict.fromkeys(refs))
    _remove_all(task, going, lambda ref: _check_and_remove(task, ref, going))


def remove_unused(task: Task, refs: Iterable[Ref]) -> list[Ref]:
    """Delete the resources that no other resource uses, and return the rest. A group stays if any resource stays."""
    used: list[Ref] = []
    going = list(dict.fromkeys(refs))

    def step(ref: Ref) -> None:
        if used and ref.kind is Kind.RESOURCE_GROUP:
            used.append(ref)
            return
        try:
            _check_and_remove(task, ref, going)
        except CloudError as error:
            if error.fault is not Fault.IN_USE:
                raise
            used.append(ref)

    _remove_all(task, going, step)
    return used


def _remove_all(task: Task, refs: Sequence[Ref], remove_one: Callable[[Ref], None]) -> None:
    needs = {ref: [other for other in refs if other.kind in _AFTER[ref.kind]] for ref in refs}
    run_steps({ref: partial(remove_one, ref) for ref in refs}, needs, task.cloud.interrupt)


def _check_and_remove(task: Task, ref: Ref, going: Sequence[Ref]) -> None:
    if ref.kind is Kind.RESOURCE_GROUP:
        _check_only_ours(task.cloud, ref, going)
    if ref.kind is Kind.VM:
        _keep_attached(task.within(REMOVE_SECONDS), ref)
    task = task.within(REMOVE_SECONDS)
    with task.step(ref, "deleting", "deleted"):
        _delete(task, ref)
        # Azure can show a resource for a moment after reporting it as deleted.
        if not task.wait_until(lambda: task.cloud.look(ref) is None):
            raise CloudError(Fault.TIMEOUT, "StillThere", "deleted, and Azure still shows it", subject=str(ref))


def _check_only_ours(cloud: Cloud, group: Ref, going: Iterable[Ref]) -> None:
    """Raise CloudError if the group contains other resources by now: deleting a group deletes its contents."""
    if others := strangers(cloud.contents(group.group), going, cloud.subscription):
        names = ", ".join(sorted(each.rsplit("/", 1)[-1] for each in others))
        raise CloudError(Fault.IN_USE, "GroupNotEmpty", f"{NOT_MADE}: {names}", subject=str(group))


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


def _delete(task: Task, ref: Ref) -> None:
    try:
        task.retry(lambda: task.cloud.wait(task.cloud.delete(ref), task.deadline), UNREACHABLE_SECONDS)
    except CloudError as error:
        # Azure may have lost the operation, not the resource. The next look shows whether the resource is gone.
        if error.fault is not Fault.ABSENT:
            raise
