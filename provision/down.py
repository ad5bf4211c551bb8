"""Ends a machine: off, or gone; and proves it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from gpuinfra.models.receipt import Off, Receipt, Residue
from gpuinfra.models.resource import Kind, Ref
from gpuinfra.provision import tags
from gpuinfra.provision.attachments import attached_by_others
from gpuinfra.provision.cloud import DELETING, OFF, Act, Cloud, Observed, ObservedResource
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.journal import Journal
from gpuinfra.provision.lifecycle.lease import ON
from gpuinfra.provision.market.port import Market
from gpuinfra.provision.market.residue import address_per_month, disk_per_month
from gpuinfra.provision.names import ref_of
from gpuinfra.provision.ownership import (
    LEFT_ALONE,
    Owner,
    is_default_group,
    left_alone,
    owner_of,
    untagged_problem,
)
from gpuinfra.provision.plan import is_disk_of_ours
from gpuinfra.provision.remove import remove, strangers
from gpuinfra.provision.waiting.deadline import Deadline
from gpuinfra.provision.waiting.patience import patiently, until
from gpuinfra.provision.waiting.progress import Progress

# A teardown does not give up easily: as long as it tries, the machine is billed.
UNREACHABLE_SECONDS = 300.0
OFF_SECONDS = 1200.0
SEEN_SECONDS = 60.0
ALREADY = "it was off already"


@dataclass
class Teardown:
    """One machine on its way down. It needs no spec: tag, name and group say what is ours."""

    name: str
    group: str | None
    cloud: Cloud
    market: Market | None
    progress: Progress
    journal: Journal
    deadline: Deadline
    cause: str = ""
    """Who or what ends it, for the receipt."""

    # Off

    def deallocate(self) -> Receipt:
        """Off, as Azure itself says. Absent is off; a machine without our tags is a Problem unless it is off."""
        observed = self.cloud.observe(self.name, self.group, thorough=True)
        if (stranger := observed.untagged) and stranger.power != OFF:
            raise untagged_problem(stranger)
        machine = observed.machine or observed.untagged
        if machine is None:
            return self._absent(observed)
        left = []
        if machine.power != OFF:
            try:
                self._switch_off(machine.ref)
            except CloudError as error:
                if error.fault is Fault.INTERRUPTED:
                    raise
                left.append(f"{machine.ref} is on: {error.code}: {error.message}")
        off = _verified(self.cloud.look(machine.ref))
        return replace(
            self._receipt(machine, off, was_on=machine.power in ON),
            left=tuple(left) if off is None else (),
            residue=tuple(_residue(observed)),
            kept=_left_alone(observed),
            # Of such a machine Azure accepts nothing but another delete.
            deletes=machine.state == DELETING,
        )

    def _switch_off(self, ref: Ref) -> None:
        self.progress.begin(str(ref), "deallocating")
        self.journal.intend("deallocating", ref)
        deadline = self.deadline.within(OFF_SECONDS)
        pause = self.cloud.interrupt.sleep
        try:
            self._ask_off(ref, deadline)
            # Azure's word that the operation is over is not yet its word that the machine is off.
            seen = until(lambda: _verified(self.cloud.look(ref)) is not None, deadline.within(SEEN_SECONDS), pause)
        except CloudError as error:
            self._not_off(ref, error.code)
            raise
        if seen:
            self.progress.end(str(ref), "deallocated")
            self.journal.did("deallocating", ref)
        else:
            self._not_off(ref, "not seen to be off")

    def _ask_off(self, ref: Ref, deadline: Deadline) -> None:
        try:
            patiently(
                lambda: self.cloud.wait(self.cloud.act(ref, Act.DEALLOCATE), deadline),
                deadline,
                self.cloud.interrupt.sleep,
                unreachable_seconds=UNREACHABLE_SECONDS,
            )
        except CloudError as error:
            # It may be the operation that is not found; whether the machine is off, or gone, is seen next.
            if error.fault is not Fault.ABSENT:
                raise

    def _not_off(self, ref: Ref, reason: str) -> None:
        self.progress.fail(str(ref), reason)
        self.journal.failed("deallocating", ref, reason)

    # Gone

    def delete(self) -> Receipt:
        """Everything that is part of the machine, and nothing else. What is still there afterwards is in `left`."""
        observed = self.cloud.observe(self.name, self.group, thorough=True)
        if stranger := observed.untagged:
            # Its schedule, its address and its disk belong to it: nothing goes while it stays.
            raise untagged_problem(stranger)
        machine = observed.machine
        was_on = machine is not None and machine.power in ON
        refs, kept = self._to_delete(observed)
        failure: CloudError | None = None
        try:
            remove(self.cloud, refs, self.progress, self.journal, self.deadline)
        except CloudError as error:
            if error.fault is Fault.INTERRUPTED:
                raise
            failure = error
            self._at_least_off(observed)
        left, off = self._left(observed.group, refs, kept)
        if failure and not left:
            failure = None  # somebody else has finished it
        reasons = (f"{failure.subject}: {failure.code}: {failure.message}",) if failure else ()
        deleted = tuple(str(ref) for ref in refs if not left or str(ref) not in left)
        words = (*kept.values(), *_detached(machine), *_left_alone(observed))
        elsewhere = _on_elsewhere(observed)
        receipt = self._receipt(machine, None if elsewhere else off, was_on=was_on)
        receipt = replace(receipt, deleted=deleted, kept=words, left=(*left, *reasons, *elsewhere), deletes=True)
        return replace(receipt, existed=_existed(observed))

    def _at_least_off(self, observed: Observed) -> None:
        """What cannot be deleted need not be billed."""
        if machine := observed.machine:
            with contextlib.suppress(CloudError):
                found = self.cloud.look(machine.ref)
                if found and found.power != OFF:
                    self._switch_off(machine.ref)

    def _to_delete(self, observed: Observed) -> tuple[list[Ref], dict[str, str]]:
        """What goes; and what stays on purpose, by its name, with the reason."""
        ours = [part for part in observed.parts if observed.is_ours(part) or is_disk_of_ours(observed, part)]
        refs = [part.ref for part in ours if part.ref.kind is not Kind.RESOURCE_GROUP]
        kept: dict[str, str] = {}
        named = observed.part(Kind.RESOURCE_GROUP)
        if named and not is_default_group(observed.group, self.name):
            kept[str(named.ref)] = f"{named.ref}: it is named in the spec"
        for group in (part for part in ours if part.ref.kind is Kind.RESOURCE_GROUP):
            found = self.cloud.contents(group.ref.group)
            # Another `up` may have created parts of this machine since it was observed: those keep the group, too.
            own = [ref_of(kind, group.ref.group, self.name) for kind in Kind if kind is not Kind.RESOURCE_GROUP]
            if others := strangers(found, [*refs, *own], self.cloud.subscription):
                names = ", ".join(sorted(each.rsplit("/", 1)[-1] for each in others))
                kept[str(group.ref)] = f"{group.ref}: it holds what was not made for this machine: {names}"
                self.cloud.disown(group.ref.group)
            elif not strangers(found, refs, self.cloud.subscription):
                refs.append(group.ref)
        return refs, kept

    def _left(self, group: str, refs: list[Ref], kept: dict[str, str]) -> tuple[tuple[str, ...], Off | None]:
        """What is still there of it; and how Azure says that the machine is not on."""
        observed = self.cloud.observe(self.name, group, thorough=True)
        # What a machine uses is known only while the machine is there.
        found = [part for part in observed.parts if observed.is_ours(part) or part.ref in refs]
        parts = [part for part in found if str(part.ref) not in kept]
        return tuple(str(part.ref) for part in parts), _verified(observed.part(Kind.VM))

    # Receipts

    def _absent(self, observed: Observed) -> Receipt:
        elsewhere = _on_elsewhere(observed)
        return Receipt(
            self.name,
            None if elsewhere else Off.ABSENT,
            self.cloud.now(),
            residue=tuple(_residue(observed)),
            kept=_left_alone(observed),
            left=elsewhere,
            simulated=self.cloud.simulated,
            existed=_existed(observed),
        )

    def _receipt(self, machine: ObservedResource | None, off: Off | None, *, was_on: bool) -> Receipt:
        now = self.cloud.now()
        size = machine.properties["hardwareProfile"]["vmSize"] if machine else None
        return Receipt(
            name=self.name,
            verified=off,
            at=now,
            region=machine.region if machine else None,
            size=size,
            spot=machine is not None and _is_spot(machine),
            group=machine.ref.group if machine else None,
            billed_from=tags.moment(machine.tags, tags.ON_SINCE) if machine and was_on else None,
            billed_to=_end(now) if was_on else None,
            price_per_hour=self._price(machine) if machine else None,
            simulated=self.cloud.simulated,
            cause=self.cause if was_on else ALREADY if machine else "",
        )

    def _price(self, machine: ObservedResource) -> float | None:
        if self.market is None:
            return None
        size = machine.properties["hardwareProfile"]["vmSize"]
        return self.market.price(size, machine.region, spot=_is_spot(machine))


def _is_spot(machine: ObservedResource) -> bool:
    return str(machine.properties.get("priority") or "").casefold() == "spot"


def _verified(machine: ObservedResource | None) -> Off | None:
    """Off only where Azure says so."""
    if machine is None:
        return Off.ABSENT
    return Off.DEALLOCATED if machine.power == OFF else None


def _on_elsewhere(observed: Observed) -> tuple[str, ...]:
    """A line for each machine of ours with this name that is on in another group, where this group has none.

    It may be the one that the user means: then "off" would be wrong.
    """
    if observed.part(Kind.VM):
        return ()
    found = (part for part in observed.lookalikes() if part.ref.kind is Kind.VM and owner_of(part) is Owner.OURS)
    return tuple(
        f"{part.ref} in group {part.ref.group} is {part.power}, and this was for group {observed.group}: "
        f"with `resourceGroup: {part.ref.group}` in the spec, `down` ends it"
        for part in found
        if part.power != OFF
    )


def _existed(observed: Observed) -> bool:
    """Whether anything of the machine is there: then it was there too."""
    return any(observed.ours())


def _left_alone(observed: Observed) -> tuple[str, ...]:
    """A line for each resource that carries the machine's tag and is not part of it."""
    unknown = (f"{each}: it has the tag of {observed.name}; {LEFT_ALONE}" for each in observed.unknown)
    found = (
        left_alone(part.ref, observed.name, part.power if part.ref.kind is Kind.VM else "")
        for part in observed.lookalikes()
    )
    return (*found, *unknown)


def _detached(machine: ObservedResource | None) -> Iterator[str]:
    """A line for each disk and NIC that others attached to a machine which goes."""
    for each in attached_by_others(machine) if machine else ():
        yield f"{each}: it was attached to this machine, and is detached"


def _residue(observed: Observed) -> list[Residue]:
    """What is paid for while the machine is off."""
    found = []
    disk, address = observed.part(Kind.DISK), observed.part(Kind.PUBLIC_IP)
    if disk and (observed.is_ours(disk) or is_disk_of_ours(observed, disk)):
        sku = str((disk.body.get("sku") or {}).get("name", ""))
        price = disk_per_month(int(disk.properties.get("diskSizeGB") or 0), sku)
        found.append(Residue("disk", disk.ref.name, price))
    if address and observed.is_ours(address):
        found.append(Residue(Kind.PUBLIC_IP, address.ref.name, address_per_month()))
    return found


def _end(now: datetime) -> datetime:
    return now.replace(microsecond=0)
