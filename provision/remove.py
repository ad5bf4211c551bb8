"""Removes resources, the machine first, and sees that each is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpuinfra.models.resource import Kind, Ref
from gpuinfra.provision.attachments import attached_by_others, detaching_update
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.journal import Journal
from gpuinfra.provision.waiting.deadline import Deadline
from gpuinfra.provision.waiting.patience import patiently, until
from gpuinfra.provision.waiting.progress import Progress
from gpuinfra.provision.waiting.steps import run_steps

UNREACHABLE_SECONDS = 300.0
REMOVE_SECONDS = 1200.0

# The opposite of how they come to be: what uses another goes before it.
_AFTER: dict[Kind, tuple[Kind, ...]] = {
    Kind.VM: (),
    # As long as there is a machine, something has to stop it.
    Kind.SHUTDOWN_SCHEDULE: (Kind.VM,),
    Kind.DISK: (Kind.VM,),
    Kind.NIC: (Kind.VM,),
    Kind.PUBLIC_IP: (Kind.VM, Kind.NIC),
    Kind.NSG: (Kind.VM, Kind.NIC),
    Kind.VNET: (Kind.VM, Kind.NIC),
    Kind.RESOURCE_GROUP: tuple(kind for kind in Kind if kind is not Kind.RESOURCE_GROUP),
}


def strangers(others: Iterable[str], going: Iterable[Ref], subscription: str) -> list[str]:
    """Ids in a group that would stay when these go. What is inside of a resource, as an extension, goes with it."""
    ids = [ref.id(subscription).casefold() for ref in going if ref.kind is not Kind.RESOURCE_GROUP]
    return [
        other
        for other in others
        if not any(other.casefold() == each or other.casefold().startswith(f"{each}/") for each in ids)
    ]


def remove(cloud: Cloud, refs: Iterable[Ref], progress: Progress, journal: Journal, deadline: Deadline) -> None:
    """Delete all of these, and see them gone. Absent is gone."""
    going = list(dict.fromkeys(refs))
    _remove_all(cloud, going, lambda ref: _check_and_remove(cloud, ref, going, progress, journal, deadline))


def remove_unused(
    cloud: Cloud, refs: Iterable[Ref], progress: Progress, journal: Journal, deadline: Deadline
) -> list[Ref]:
    """Delete those that no other resource uses, and return the others. A group stays if something in it does."""
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
    """Raise if something was put into a group meanwhile: a group goes with everything in it."""
    if others := strangers(cloud.contents(group.group), going, cloud.subscription):
        names = ", ".join(sorted(each.rsplit("/", 1)[-1] for each in others))
        message = f"it holds what was not made for this machine: {names}"
        raise CloudError(Fault.IN_USE, "GroupNotEmpty", message, subject=str(group))


def _keep_attached(cloud: Cloud, ref: Ref, progress: Progress, deadline: Deadline) -> None:
    """See to it that Azure deletes nothing with a machine that others attached to it."""

    def attempt() -> None:
        machine = cloud.look(ref)
        update = detaching_update(machine) if machine else None
        if machine and update:
            progress.note(f"kept: {', '.join(attached_by_others(machine))}")
            cloud.wait(cloud.patch(update), deadline)

    patiently(attempt, deadline, cloud.interrupt.sleep, unreachable_seconds=UNREACHABLE_SECONDS)


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
        patiently(
            lambda: cloud.wait(cloud.delete(ref), deadline),
            deadline,
            cloud.interrupt.sleep,
            unreachable_seconds=UNREACHABLE_SECONDS,
        )
    except CloudError as error:
        # It may be the operation that is not found; whether the resource is gone is seen next.
        if error.fault is not Fault.ABSENT:
            raise


def _see_gone(cloud: Cloud, ref: Ref, deadline: Deadline) -> None:
    """Azure can say done and still show it for a moment; only a 404 is gone."""
    if not until(lambda: cloud.look(ref) is None, deadline, cloud.interrupt.sleep):
        raise CloudError(Fault.TIMEOUT, "StillThere", "deleted, and Azure still shows it", subject=str(ref))
