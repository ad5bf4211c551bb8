"""Deallocate or delete a machine, and verify the result with Azure."""

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gpuinfra.models.plan import Kind, Power, Ref
from gpuinfra.models.receipt import OFF_BEFORE, OffProof, Receipt, Residue
from gpuinfra.provision import tags
from gpuinfra.provision.agent_role import principal_of
from gpuinfra.provision.errors import CloudError, Fault, reason_of
from gpuinfra.provision.market import address_per_month, disk_price
from gpuinfra.provision.observed import NOT_MADE, Observed, is_deletable, namesakes, why_kept
from gpuinfra.provision.observed_resource import DELETING, ObservedResource
from gpuinfra.provision.ownership import (
    LEFT_ALONE,
    Owner,
    is_default_group,
    left_alone,
    left_alone_machine,
    on_elsewhere,
    owner_of,
    untagged_problem,
)
from gpuinfra.provision.plan import is_own_disk
from gpuinfra.provision.power import BILLED, DEALLOCATED
from gpuinfra.provision.remove import attached_by_others, remove, strangers
from gpuinfra.provision.resources.disk import fetched_update
from gpuinfra.provision.tags import ref_of
from gpuinfra.provision.task import Task

# A teardown retries for long, because the machine is billed until it succeeds.
UNREACHABLE_SECONDS = 300.0
OFF_SECONDS = 1200.0
SEEN_SECONDS = 60.0


class _NotSeenOffError(CloudError):
    """Azure finished the deallocation, but does not show the VM as off. The receipt then has no proof."""

    def __init__(self) -> None:
        super().__init__(Fault.TIMEOUT, "not seen to be off", "")


def switch_off(task: Task, ref: Ref) -> str:
    """Deallocate a VM. Return why it may still be on, or an empty string. An absent VM counts as off."""
    try:
        _switch_off(task.within(OFF_SECONDS), ref)
    except _NotSeenOffError:
        return f"{ref}: Azure does not show it as off"
    except CloudError as error:
        if error.fault is Fault.INTERRUPTED:
            raise
        return f"{ref} is on: {reason_of(error)}"
    return ""


def _switch_off(task: Task, ref: Ref) -> None:
    with task.step(ref, "deallocating", "deallocated"):
        try:
            task.retry(
                lambda: task.cloud.wait(task.cloud.act(ref, Power.DEALLOCATE), task.deadline), UNREACHABLE_SECONDS
            )
        except CloudError as error:
            # Azure may have lost the operation, not the VM. The next look shows whether the VM is off or gone.
            if error.fault is not Fault.ABSENT:
                raise
        # A finished operation does not prove that the VM is off, so read its power state.
        if not task.within(SEEN_SECONDS).wait_until(lambda: _verified(task.cloud.look(ref)) is not None):
            raise _NotSeenOffError


@dataclass
class Teardown:
    """The teardown of one machine. It needs no spec: tag, name and group identify our resources."""

    name: str
    group: str | None
    task: Task
    cause: str = ""
    """Who or what stops the machine, for the receipt."""
    closed_until: float = 0.0
    """Until when, by `time.time()`, the machine refuses new jobs, because nothing on it is unfetched."""
    look_seconds: float = 30.0
    """For how long Azure is asked for the state that the receipt shows, even after the deadline."""

    # Deallocate

    def deallocate(self) -> Receipt:
        """Deallocate the VM and return a receipt with Azure's own state. An absent VM counts as off.

        Raise Problem if the VM lacks our tags and is not off.
        """
        observed = self.task.cloud.observe(self.name, self.group, thorough=True)
        if (stranger := observed.untagged) and stranger.power != DEALLOCATED:
            raise untagged_problem(stranger)
        machine = observed.machine or observed.untagged
        if machine is None:
            return self._absent(observed)
        self._limit_requests()
        still_on = switch_off(self.task, machine.ref) if machine.power != DEALLOCATED else ""
        self._allow_look()
        off = _verified(self.task.cloud.look(machine.ref))
        if time.time() < self.closed_until and off is OffProof.DEALLOCATED and machine.power != DEALLOCATED:
            self._record_fetched(machine.ref.group)
        return replace(
            self._receipt(machine, off, was_on=machine.power in BILLED, observed=observed),
            left=(*([still_on] if still_on and off is None else ()), *_on_elsewhere(observed)),
            residue=_residue(_own(observed)),
            kept=_left_alone(observed),
            # In this state Azure accepts only another delete.
            deletes=machine.state == DELETING,
        )

    def _record_fetched(self, group: str) -> None:
        """Record on the disk that all outputs were fetched. Without it, `reap --delete` deletes nothing unasked."""
        task = self.task.within(SEEN_SECONDS)
        with contextlib.suppress(CloudError):
            disk = task.cloud.look(ref_of(Kind.DISK, group, self.name))
            if disk and (wanted := fetched_update(disk)):
                task.cloud.wait(task.cloud.patch(wanted), task.deadline)

    def _limit_requests(self) -> None:
        """End the repetition of failed requests with the deadline: looks may take longer, and changes may not."""
        self.task.cloud.grant(self.task.deadline.left)

    def _allow_look(self) -> None:
        """Give the looks that follow their own time if the deadline is near."""
        if self.task.deadline.left < self.look_seconds:
            self.task.cloud.grant(self.look_seconds)

    # Delete

    def delete(self) -> Receipt:
        """Delete the machine's resources and nothing else. The receipt's `left` lists what still exists."""
        observed = self.task.cloud.observe(self.name, self.group, thorough=True)
        if stranger := observed.untagged:
            # Its schedule, public IP and disk belong to it, so nothing is deleted while the VM stays.
            raise untagged_problem(stranger)
        machine = observed.machine
        was_on = machine is not None and machine.power in BILLED
        refs, kept = self._to_delete(observed)
        failure, still_on = None, ""
        self._limit_requests()
        try:
            remove(self.task, refs, lambda found: machine is not None and found.identity == machine.identity)
        except CloudError as error:
            if error.fault is Fault.INTERRUPTED:
                raise
            self._allow_look()
            failure, still_on = error, self._switch_off_at_least(machine)
        self._allow_look()
        left, residue, off = self._left(observed.group, refs, kept)
        # Only now: another task may have deleted the other machines of the group at the same time.
        self._say_if_emptied(observed, kept)
        # Without anything left, another client has finished the deletion.
        reasons = (f"{failure.subject}: {reason_of(failure)}", still_on) if failure and left else ()
        deleted = tuple(str(ref) for ref in refs if not left or str(ref) not in left)
        words = (*kept.values(), *_detached(observed), *_left_alone(observed))
        elsewhere = _on_elsewhere(observed)
        # If this group had no machine, the user may mean the other one.
        off = off if machine or not elsewhere else None
        receipt = self._receipt(machine, off, was_on=was_on, observed=observed)
        left = (*left, *filter(None, reasons), *elsewhere)
        receipt = replace(receipt, deleted=deleted, kept=words, left=left, residue=residue, deletes=True)
        return replace(receipt, existed=_existed(observed))

    def _switch_off_at_least(self, machine: ObservedResource | None) -> str:
        """Deallocate a machine that cannot be deleted. Return why it may still be on, or an empty string."""
        with contextlib.suppress(CloudError):
            found = self.task.cloud.look(machine.ref) if machine else None
            # Another client may have created it again: that machine is not ours to stop.
            if machine is None or _verified(found) or (found and found.identity != machine.identity):
                return ""
        return switch_off(self.task, machine.ref) if machine else ""

    def _to_delete(self, observed: Observed) -> tuple[list[Ref], dict[str, str]]:
        """Return the resources to delete, and those to keep: their names with the reason."""
        ours = _own(observed)
        parts = [part for part in ours if part.ref.kind is not Kind.RESOURCE_GROUP]
        refs = [part.ref for part in parts if is_deletable(part, observed)]
        stays = [part for part in parts if part.ref not in refs]
        kept = {str(part.ref): why_kept(part, observed) for part in stays}
        named = observed.part(Kind.RESOURCE_GROUP)
        if named and not is_default_group(observed.group, self.name):
            kept[str(named.ref)] = f"{named.ref}: it is named in the spec"
        for group in (part for part in ours if part.ref.kind is Kind.RESOURCE_GROUP):
            found = self.task.cloud.contents(group.ref.group)
            # Another `up` may have created resources of this machine since it was observed. They keep the group, too.
            own = [ref_of(kind, group.ref.group, self.name) for kind in Kind if kind is not Kind.RESOURCE_GROUP]
            if others := strangers(found, [*refs, *own], self.task.cloud.subscription):
                names = ", ".join(sorted(each.rsplit("/", 1)[-1] for each in others))
                kept[str(group.ref)] = f"{group.ref}: {NOT_MADE}: {names}"
                self.task.cloud.disown(group.ref.group)
            elif stays:
                # It keeps its tag: once others have removed their resources, `down --delete` deletes all of it.
                kept[str(group.ref)] = f"{group.ref}: {', '.join(str(part.ref) for part in stays)} is kept"
            elif not strangers(found, refs, self.task.cloud.subscription):
                refs.append(group.ref)
        return refs, kept

    def _say_if_emptied(self, observed: Observed, kept: dict[str, str]) -> None:
        """Add how to delete a group that the spec names if it is empty now.

        gpuinfra never deletes it: another `up` may be about to use it, and its roles and policies may be others'.
        """
        named, group = observed.part(Kind.RESOURCE_GROUP), observed.group
        if named and not is_default_group(group, self.name) and not self.task.cloud.contents(group):
            kept[str(named.ref)] += f", and empty; `az group delete --name {named.ref.group}` deletes it"

    def _left(
        self, group: str, refs: list[Ref], kept: dict[str, str]
    ) -> tuple[tuple[str, ...], tuple[Residue, ...], OffProof | None]:
        """Return the resources that still exist, those of them that are billed, and Azure's proof of off, if any."""
        observed = self.task.cloud.observe(self.name, group, thorough=True)
        # Which resources a VM uses is known only while the VM exists, so compare with `refs`, too.
        found = [part for part in observed.parts if observed.is_ours(part) or part.ref in refs]
        parts = [part for part in found if str(part.ref) not in kept]
        left = tuple(str(part.ref) for part in parts)
        return left, _residue(parts), _verified(observed.part(Kind.VM))

    # Receipts

    def _absent(self, observed: Observed) -> Receipt:
        elsewhere = _on_elsewhere(observed)
        receipt = self._receipt(None, None if elsewhere else OffProof.ABSENT, was_on=False, observed=observed)
        residue, kept = _residue(_own(observed)), _left_alone(observed)
        return replace(receipt, residue=residue, kept=kept, left=elsewhere, existed=_existed(observed))

    def _receipt(
        self, machine: ObservedResource | None, off: OffProof | None, *, was_on: bool, observed: Observed
    ) -> Receipt:
        cloud, now = self.task.cloud, self.task.cloud.now()
        receipt = Receipt(self.name, off, now, simulated=cloud.simulated)
        if machine is None:
            return receipt
        monthly = {each.kind: each.per_month for each in _residue(_own(observed))}
        receipt = replace(
            receipt,
            created=machine.created,
            principal=principal_of(machine),
            disk_per_month=monthly.get("disk"),
            address_per_month=monthly.get(Kind.PUBLIC_IP),
            tags=machine.other_tags,
            region=machine.region,
            size=machine.size,
            spot=machine.is_spot,
            group=machine.ref.group,
            price_per_hour=self.task.market.price(machine.size, machine.region, spot=machine.is_spot),
        )
        if not was_on:
            return replace(receipt, cause=OFF_BEFORE)
        since = tags.moment(machine.tags, tags.ON_SINCE)
        return replace(receipt, billed_from=since, billed_to=now.replace(microsecond=0), cause=self.cause)


def _verified(machine: ObservedResource | None) -> OffProof | None:
    """Return the proof that a VM is off, or None unless Azure shows it as deallocated or absent."""
    if machine is None:
        return OffProof.ABSENT
    return OffProof.DEALLOCATED if machine.power == DEALLOCATED else None


def _on_elsewhere(observed: Observed) -> tuple[str, ...]:
    """Describe each of our machines with this name that is on in another group, tagged or not.

    The user may mean that one, and then "off" would be wrong.
    """
    on = [part for part in namesakes(observed) if part.power != DEALLOCATED]
    if observed.part(Kind.VM):
        # The spec means that one. A tagged one has its own lease and `reap`, and is listed as kept.
        on = [part for part in on if owner_of(part) is Owner.UNTAGGED]
    return tuple(on_elsewhere(part, observed.group) for part in on)


def _existed(observed: Observed) -> bool:
    """Return whether any resource of the machine exists, which means that the machine existed."""
    return any(observed.ours())


def _left_alone(observed: Observed) -> tuple[str, ...]:
    """Describe each resource that has the machine's tag but does not belong to it."""
    unknown = (f"{each}: it has the tag of {observed.name}; {LEFT_ALONE}" for each in observed.unknown)
    found = (
        left_alone_machine(part) if part.ref.kind is Kind.VM else left_alone(part.ref, observed.name)
        for part in observed.lookalikes()
    )
    return (*found, *unknown)


def _detached(observed: Observed) -> Iterator[str]:
    """Describe each disk, NIC and public IP that others attached to a machine to be deleted."""
    if machine := observed.machine:
        for each in attached_by_others(machine, observed.part(Kind.NIC)):
            yield f"{each}: it was attached to this machine, and is detached"


def _own(observed: Observed) -> list[ObservedResource]:
    """Return our resources, with the disk that Azure created with our VM."""
    return [part for part in observed.parts if observed.is_ours(part) or is_own_disk(observed, part)]


def _residue(parts: Iterable[ObservedResource]) -> tuple[Residue, ...]:
    """Return those of the resources that cost money while the machine is off."""
    found = {part.ref.kind: part for part in parts}
    disk, address = found.get(Kind.DISK), found.get(Kind.PUBLIC_IP)
    return (
        *([Residue("disk", disk.ref.name, disk_price(disk))] if disk else ()),
        *([Residue(Kind.PUBLIC_IP, address.ref.name, address_per_month())] if address else ()),
    )
