"""Collect the data about machine costs, grouped by machine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from gpuinfra.models.ledger import LedgerEntry
from gpuinfra.models.resource import Kind
from gpuinfra.provision import tags
from gpuinfra.provision.costing.activity import Event, changes, samples
from gpuinfra.provision.costing.facts import Facts, Pricing
from gpuinfra.provision.costing.history import CostHistory, Present, cost_history
from gpuinfra.provision.market.price_list import address_per_month, disk_price
from gpuinfra.provision.observed_resource import ObservedResource, resource_of_row
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

    def sizes(self) -> tuple[str, ...]:
        """Return the VM sizes whose prices are needed."""
        found = [entry.size for entry in self.entries]
        found += [_facts(resource_of_row(Kind.VM, each)).size for each in self.machines]
        found += [event.facts.size for event in self.events if event.facts]
        return tuple(dict.fromkeys(size for size in found if size))

    def histories(self, pricing: Pricing) -> list[CostHistory]:
        """Return a history for each machine that is known to be ours."""
        present = _presents(self.machines, self.disks, self.addresses)
        entries = _by_key(self.entries, present)
        events: dict[str, list[Event]] = {}
        for event in self.events:
            events.setdefault(_key_of_id(event.machine), []).append(event)
        ours = {*present, *entries, *(key for key in events if _is_named_by_us(key))}
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
            )
            for key in sorted(ours)
        ]


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
