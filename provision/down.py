"""Deallocate or delete a machine, and verify the result with Azure."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gpuinfra.models.plan import Power
from gpuinfra.models.receipt import OFF_BEFORE, OffProof, Receipt, Residue
from gpuinfra.models.resource import Kind, Ref
from gpuinfra.provision import tags
from gpuinfra.provision.attachments import attached_by_others
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market.price_list import address_per_month, disk_price
from gpuinfra.provision.names import ref_of
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
from gpuinfra.provision.remove import remove, strangers
from gpuinfra.provision.task import Task

# A teardown retries for long, because the machine is billed until it succeeds.
UNREACHABLE_SECONDS = 300.0
OFF_SECONDS = 1200.0
SEEN_SECONDS = 60.0


class _NotSeenOffError(CloudError):
    """Azure finished the deallocation, but does not show the VM as off. The receipt then has no proof."""

    def __init__(self) -> None:
        super().__init__(Fault.TIMEOUT, "not seen to be off", "")


@dataclass
class Teardown:
    """The teardown of one machine. It needs no spec: tag, name and group identify our resources."""

    name: str
    group: str | None
    task: Task
    cause: str = ""
    """Who or what stops the machine, for the receipt."""

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
        left = []
        if machine.power != DEALLOCATED:
            try:
                self._switch_off(machine.ref)
            except CloudError as error:
                if error.fault is Fault.INTERRUPTED:
                    raise
                left.append(f"{machine.ref} is on: {error.code}: {error.message}")
        off = _verified(self.task.cloud.look(machine.ref))
        return replace(
            self._receipt(machine, off, was_on=machine.power in BILLED),
            left=(*(left if off is None else ()), *_on_elsewhere(observed)),
            residue=tuple(_residue(observed)),
            kept=_left_alone(observed),
            # In this state Azure accepts only another delete.
            deletes=machine.state == DELETING,
        )

    def _switch_off(self, ref: Ref) -> None:
        task = self.task.within(OFF_SECONDS)
        with contextlib.suppress(_NotSeenOffError), task.step(ref, "deallocating", "deallocated"):
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
        failure: CloudError | None = None
        try:
            remove(self.task, refs)
        except CloudError as error:
            if error.fault is Fault.INTERRUPTED:
                raise
            failure = error
            self._at_least_off(observed)
        left, off = self._left(observed.group, refs, kept)
        if failure and not left:
            failure = None  # another client has finished the deletion
        reasons = (f"{failure.subject}: {failure.code}: {failure.message}",) if failure else ()
        deleted = tuple(str(ref) for ref in refs if not left or str(ref) not in left)
        words = (*kept.values(), *_detached(observed), *_left_alone(observed))
        elsewhere = _on_elsewhere(observed)
        # If this group had no machine, the user may mean the other one.
        receipt = self._receipt(machine, off if machine or not elsewhere else None, was_on=was_on)
        receipt = replace(receipt, deleted=deleted, kept=words, left=(*left, *reasons, *elsewhere), deletes=True)
        return replace(receipt, existed=_existed(observed))

    def _at_least_off(self, observed: Observed) -> None:
        """Deallocate a machine that cannot be deleted, so that it is not billed."""
        if machine := observed.machine:
            with contextlib.suppress(CloudError):
                found = self.task.cloud.look(machine.ref)
                if found and found.power != DEALLOCATED:
                    self._switch_off(machine.ref)

    def _to_delete(self, observed: Observed) -> tuple[list[Ref], dict[str, str]]:
        """Return the resources to delete, and those to keep: their names with the reason."""
        ours = [part for part in observed.parts if observed.is_ours(part) or is_own_disk(observed, part)]
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

    def _left(self, group: str, refs: list[Ref], kept: dict[str, str]) -> tuple[tuple[str, ...], OffProof | None]:
        """Return the resources that still exist, and Azure's proof that the machine is off, if any."""
        observed = self.task.cloud.observe(self.name, group, thorough=True)
        # Which resources a VM uses is known only while the VM exists, so compare with `refs`, too.
        found = [part for part in observed.parts if observed.is_ours(part) or part.ref in refs]
        parts = [part for part in found if str(part.ref) not in kept]
        return tuple(str(part.ref) for part in parts), _verified(observed.part(Kind.VM))

    # Receipts

    def _absent(self, observed: Observed) -> Receipt:
        elsewhere = _on_elsewhere(observed)
        receipt = self._receipt(None, None if elsewhere else OffProof.ABSENT, was_on=False)
        residue, kept = tuple(_residue(observed)), _left_alone(observed)
        return replace(receipt, residue=residue, kept=kept, left=elsewhere, existed=_existed(observed))

    def _receipt(self, machine: ObservedResource | None, off: OffProof | None, *, was_on: bool) -> Receipt:
        cloud, now = self.task.cloud, self.task.cloud.now()
        receipt = Receipt(self.name, off, now, simulated=cloud.simulated)
        if machine is None:
            return receipt
        receipt = replace(
            receipt,
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


def _residue(observed: Observed) -> list[Residue]:
    """Return the resources that cost money while the machine is off."""
    found = []
    disk, address = observed.part(Kind.DISK), observed.part(Kind.PUBLIC_IP)
    if disk and (observed.is_ours(disk) or is_own_disk(observed, disk)):
        found.append(Residue("disk", disk.ref.name, disk_price(disk)))
    if address and observed.is_ours(address):
        found.append(Residue(Kind.PUBLIC_IP, address.ref.name, address_per_month()))
    return found
