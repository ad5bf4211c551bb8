"""Collect the data about machine costs, grouped by machine."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from gpuinfra.models.plan import Kind
from gpuinfra.models.receipt import LedgerEntry
from gpuinfra.provision import tags
from gpuinfra.provision.costing.activity import Event, changes, samples
from gpuinfra.provision.costing.history import CostHistory, Present, cost_history
from gpuinfra.provision.costing.timeline import Facts, Pricing, Turn
from gpuinfra.provision.market import address_per_month, disk_per_month, disk_price
from gpuinfra.provision.observed_resource import ObservedResource, resource_of_row
from gpuinfra.provision.ownership import Owner, owner_of
from gpuinfra.provision.power import BILLED

Bodies = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Evidence:
    """The data from the activity log, the ledger and the current resources."""

    now: datetime
    events: Sequence[Event] = ()
    log_since: datetime | None = None
    """How far back the log was read; None if it was not read."""
    entries: Sequence[LedgerEntry] = ()
    """The ledger entries of this subscription, oldest first."""
    machines: Bodies = ()
    disks: Bodies = ()
    addresses: Bodies = ()
    seen: Mapping[str, Sequence[datetime]] = field(default_factory=dict)
    """By the case-folded name of a machine: further times at which it was on."""

    def sizes(self) -> tuple[str, ...]:
        """Return the VM sizes whose prices are needed."""
        found = [entry.size for entry in self.entries]
        found += [_facts(resource_of_row(Kind.VM, each)).size for each in self.machines]
        found += [event.facts.size for event in self.events if event.facts]
        return tuple(dict.fromkeys(size for size in found if size))

    def histories(self, pricing: Pricing) -> list[CostHistory]:
        """Return a history for each machine that is known to be ours."""
        present = _presents(self.machines, self.disks, self.addresses)
        entries, events = _by_key(self.entries, present), self._events_by_key()
        logged = {key: found for key, own in events.items() if (found := _logged(own))}
        ours = {*present, *entries, *logged, *(key for key in events if _is_named_by_us(key))}
        return [
            cost_history(
                key,
                log=changes(events.get(key, ())),
                log_since=self.log_since,
                entries=entries.get(key, ()),
                present=present.get(key),
                now=self.now,
                pricing=pricing,
                samples=samples(events.get(key, ())),
                seen=self.seen.get(key.partition("/")[2], ()),
                logged=logged.get(key),
                disks=list(_disks(events.get(key, ()))),
            )
            for key in sorted(ours)
        ]

    def lacks_earlier_events(self) -> bool:
        """Return whether a machine's first event in the log ends a time on, so that earlier events are needed."""
        found = (changes(events) for events in self._events_by_key().values())
        return any(own and own[0].turn is Turn.OFF for own in found)

    def _events_by_key(self) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        for event in self.events:
            found.setdefault(_key_of_id(event.machine), []).append(event)
        return found


def _key(group: str, name: str) -> str:
    """Return a machine's key. Azure ignores case."""
    return f"{group}/{name}".casefold()


def _key_of_id(resource_id: str) -> str:
    words = resource_id.split("/")
    return _key(words[4], words[-1])


def _is_named_by_us(key: str) -> bool:
    """Return whether a machine was ours. A deleted one has no tags, but `up` creates a group with this name."""
    group, _, name = key.partition("/")
    return group == f"gpuinfra-{name}"


def _logged(events: Sequence[Event]) -> Present | None:
    """Return what the log shows about a machine that gpuinfra created, or None for any other machine."""
    for event in reversed(events):
        machine = resource_of_row(Kind.VM, event.response)
        if event.response and owner_of(machine) is Owner.OURS:
            return Present(disk_per_month=_disk_per_month(machine), tags=machine.other_tags)
    return None


def _disks(events: Iterable[Event]) -> Iterator[tuple[datetime, float]]:
    """Yield the monthly price of a machine's disk at each write that shows its size."""
    for event in events:
        machine = resource_of_row(Kind.VM, event.response)
        price = _disk_per_month(machine) if event.response and machine.os_disk.get("diskSizeGB") else None
        if price is not None:
            yield event.at, price


def _disk_per_month(machine: ObservedResource) -> float | None:
    disk = machine.os_disk
    sku = str((disk.get("managedDisk") or {}).get("storageAccountType") or "")
    return disk_per_month(int(disk.get("diskSizeGB") or 0), sku)


def _by_key(entries: Iterable[LedgerEntry], present: Mapping[str, Present]) -> dict[str, list[LedgerEntry]]:
    """Group entries by machine. One without a group belongs to the only machine of its name, or the default group."""
    found: dict[str, list[LedgerEntry]] = {}
    for entry in entries:
        name = entry.machine.casefold()
        group = entry.group
        if group is None:
            known = [key for key in {*found, *present} if key.partition("/")[2] == name]
            group = known[0].partition("/")[0] if len(known) == 1 else f"gpuinfra-{name}"
        found.setdefault(_key(group, name), []).append(entry)
    return found


def _presents(machines: Bodies, disks: Bodies, addresses: Bodies) -> dict[str, Present]:
    found: dict[str, Present] = {}
    for machine in (resource_of_row(Kind.VM, body) for body in machines):
        # By its own name, as in the log: its tag may have been changed by others.
        found[_key(machine.ref.group, machine.ref.name)] = Present(
            facts=_facts(machine),
            is_on=machine.power in BILLED,
            on_since=tags.moment(machine.tags, tags.ON_SINCE),
            lease_until=tags.moment(machine.tags, tags.LEASE_UNTIL),
            changed=machine.changed,
            created=machine.created,
            tags=machine.other_tags,
        )
    for disk in (resource_of_row(Kind.DISK, body) for body in disks):
        known = found.get(_owner(disk), Present(tags=disk.other_tags))
        found[_owner(disk)] = replace(known, disk_per_month=disk_price(disk), created=disk.created or known.created)
    for address in (resource_of_row(Kind.PUBLIC_IP, body) for body in addresses):
        known = found.get(_owner(address), Present(tags=address.other_tags))
        found[_owner(address)] = replace(known, address_per_month=address_per_month())
    return found


def _owner(part: ObservedResource) -> str:
    """Return the key of the machine in the resource's tag."""
    return _key(part.ref.group, tags.get(part.tags, tags.NAME) or part.ref.name)


def _facts(machine: ObservedResource) -> Facts:
    return Facts(machine.size or None, machine.region or None, machine.is_spot)
