"""Delete resources, the VM first, and verify that each is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpuinfra.models.resource import Kind, Ref
from gpuinfra.provision.attachments import attached_by_others, detaching_update, dissociating_update
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.journal import Journal
from gpuinfra.provision.names import ref_of
from gpuinfra.provision.waiting.deadline import Deadline
from gpuinfra.provision.waiting.progress import Progress
from gpuinfra.provision.waiting.retry import retry, wait_until
from gpuinfra.provision.waiting.steps import run_steps

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


def remove(cloud: Cloud, refs: Iterable[Ref], progress: Progress, journal: Journal, deadline: Deadline) -> None:
    """Delete all these resources and verify that they are gone. An absent resource counts as gone."""
    going = list(dict.fromkeys(refs))
    _remove_all(cloud, going, lambda ref: _check_and_remove(cloud, ref, going, progress, journal, deadline))


def remove_unused(
    cloud: Cloud, refs: Iterable[Ref], progress: Progress, journal: Journal, deadline: Deadline
) -> list[Ref]:
    """Delete the resources that no other resource uses, and return the rest. A group stays if any resource stays."""
    used: list[Ref] = []
    going = list(dict.fromkeys(refs))

    def step(ref: Ref) -> None:
        if used and ref.kind is Kind.RESOURCE_GROUP:
            used.append(ref)
            return
        try:
            _check_and_remove(cloud, ref, going, progress, journal, deadline)
        except CloudError as error:
            if error.fault is not Fault.IN_USE:
                raise
            used.append(ref)

    _remove_all(cloud, going, step)
    return used


def _remove_all(cloud: Cloud, refs: Sequence[Ref], remove_one: Callable[[Ref], None]) -> None:
    def step(ref: Ref) -> Callable[[], None]:
        return lambda: remove_one(ref)

    needs = {ref: [other for other in refs if other.kind in _AFTER[ref.kind]] for ref in refs}
    run_steps({ref: step(ref) for ref in refs}, needs, cloud.interrupt)


def _check_and_remove(
    cloud: Cloud, ref: Ref, going: Sequence[Ref], progress: Progress, journal: Journal, deadline: Deadline
) -> None:
    if ref.kind is Kind.RESOURCE_GROUP:
        _check_only_ours(cloud, ref, going)
    if ref.kind is Kind.VM:
        _keep_attached(cloud, ref, progress, deadline.within(REMOVE_SECONDS))
    _remove(cloud, ref, progress, journal, deadline.within(REMOVE_SECONDS))


def _check_only_ours(cloud: Cloud, group: Ref, going: Iterable[Ref]) -> None:
    """Raise CloudError if the group contains other resources by now: deleting a group deletes its contents."""
    if others := strangers(cloud.contents(group.group), going, cloud.subscription):
        names = ", ".join(sorted(each.rsplit("/", 1)[-1] for each in others))
        message = f"it holds what was not made for this machine: {names}"
        raise CloudError(Fault.IN_USE, "GroupNotEmpty", message, subject=str(group))


def _keep_attached(cloud: Cloud, ref: Ref, progress: Progress, deadline: Deadline) -> None:
    """Make sure that Azure keeps what others attached when it deletes the VM."""

    def attempt() -> None:
        machine, nic = cloud.look(ref), cloud.look(ref_of(Kind.NIC, ref.group, ref.name))
        if machine is None:
            return
        update, without_addresses = detaching_update(machine), dissociating_update(machine, nic)
        if update or without_addresses:
            progress.note(f"kept: {', '.join(attached_by_others(machine, nic))}")
        if update:
            cloud.wait(cloud.patch(update), deadline)
        if without_addresses:
            cloud.wait(cloud.put(without_addresses), deadline)

    retry(attempt, deadline, cloud.interrupt.sleep, unreachable_seconds=UNREACHABLE_SECONDS)


def _remove(cloud: Cloud, ref: Ref, progress: Progress, journal: Journal, deadline: Deadline) -> None:
    progress.begin(str(ref), "deleting")
    journal.intend("deleting", ref)
    try:
        _delete(cloud, ref, deadline)
        _see_gone(cloud, ref, deadline)
    except CloudError as error:
        progress.fail(str(ref), error.code)
        journal.failed("deleting", ref, error.code)
        raise
    progress.end(str(ref), "deleted")
    journal.did("deleting", ref)


def _delete(cloud: Cloud, ref: Ref, deadline: Deadline) -> None:
    try:
        retry(
            lambda: cloud.wait(cloud.delete(ref), deadline),
            deadline,
            cloud.interrupt.sleep,
            unreachable_seconds=UNREACHABLE_SECONDS,
        )
    except CloudError as error:
        # Azure may have lost the operation, not the resource. The next look shows whether the resource is gone.
        if error.fault is not Fault.ABSENT:
            raise


def _see_gone(cloud: Cloud, ref: Ref, deadline: Deadline) -> None:
    """Wait until Azure returns 404. It can show a resource for a moment after reporting it as deleted."""
    if not wait_until(lambda: cloud.look(ref) is None, deadline, cloud.interrupt.sleep):
        raise CloudError(Fault.TIMEOUT, "StillThere", "deleted, and Azure still shows it", subject=str(ref))
