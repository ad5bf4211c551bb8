"""Find what costs money in Azure and is in no spec. All pure."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from shlex import quote
from typing import Any

from gpuinfra.models.inventory import MissingMachine, Reason, UnmanagedResource
from gpuinfra.models.plan import Kind
from gpuinfra.parse.spec import LocatedSpec
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Listed
from gpuinfra.provision.market import Prices, address_per_month, disk_price
from gpuinfra.provision.observed_resource import ObservedResource, same
from gpuinfra.provision.ownership import Owner, is_leftover, machine_of_row, owner_of
from gpuinfra.provision.power import NOT_BILLED
from gpuinfra.provision.reaping.decide import CAUSE, lost
from gpuinfra.provision.reaping.spec_history import SpecHistory
from gpuinfra.provision.tags import default_group, machine_key, ref_of

_GPU = re.compile(r"standard_n[cdgv]", re.IGNORECASE)
AGE = timedelta(minutes=15)
"""A younger resource without a machine may belong to one that is being created."""
_BILLED_ALONE = {Kind.DISK, Kind.PUBLIC_IP}

Rows = Sequence[Mapping[str, Any]]


def sizes(rows: Rows) -> tuple[str, ...]:
    """Return the GPU sizes of all VMs, whose prices are needed."""
    found = (machine_of_row(row).size for row in rows)
    return tuple(dict.fromkeys(size for size in found if _GPU.match(size)))


def unmanaged(
    rows: Rows, parts: Sequence[Listed], keys: Collection[str], history: SpecHistory, now: datetime, prices: Prices
) -> list[UnmanagedResource]:
    """Return machines without a spec, then orphaned disks and public IPs, then foreign GPU VMs in our groups.

    `keys` are those of the machines that have a spec: see `names.machine_key`. Prices of disks are unknown here.
    """
    # A shallow clone does not know which machines are from this repository.
    without = [] if history.is_shallow else list(_without_spec(rows, keys, history, prices, now))
    orphans = [_orphan(part) for part in lost(parts, rows, now, AGE) if part.ref.kind in _BILLED_ALONE]
    return [*_sorted(without), *_sorted(orphans), *_sorted(_foreign(rows, keys, prices))]


def _sorted(found: Iterator[UnmanagedResource] | list[UnmanagedResource]) -> list[UnmanagedResource]:
    return sorted(found, key=lambda each: (each.ref.name.casefold(), each.ref.group.casefold()))


def _without_spec(
    rows: Rows, keys: Collection[str], history: SpecHistory, prices: Prices, now: datetime
) -> Iterator[UnmanagedResource]:
    """Yield our machines from this repository without a spec anywhere in it, or those from outside git, outside git."""
    for machine in map(machine_of_row, rows):
        key = machine_key(machine.ref.group, machine.ref.name)
        is_from_here = tags.get(machine.tags, tags.REPOSITORY) == history.repository
        if owner_of(machine) is not Owner.OURS or key in keys or not is_from_here:
            continue
        if machine.ref.name.casefold() in history.present:
            continue  # its spec is in another folder
        yield UnmanagedResource(
            machine.ref,
            Reason.NO_SPEC,
            _no_spec(machine, key, history),
            f"gpuinfra down {quote(machine.ref.name)} --delete",
            machine.power,
            machine.size,
            prices.price(machine.size, machine.region, spot=machine.is_spot),
            hours_left=_hours_left(machine, now),
        )


def _hours_left(machine: ObservedResource, now: datetime) -> float | None:
    if machine.power in NOT_BILLED:
        return 0.0
    until = tags.moment(machine.tags, tags.LEASE_UNTIL)
    return max(0.0, (until - now).total_seconds() / 3600) if until else None


def _no_spec(machine: ObservedResource, key: str, history: SpecHistory) -> str:
    if since := history.deleted.get(key):
        return f"no spec in git since {since:%Y-%m-%d %H:%M}Z"
    if machine.ref.name.casefold() in history.committed:
        return "no spec in what is checked out, but one in git"
    return "no spec in git" if history.repository else "no spec in this folder"


def _orphan(part: Listed) -> UnmanagedResource:
    ref, name = part.ref, tags.get(part.tags, tags.NAME)
    command = f"gpuinfra down {quote(name)} --delete"
    if not is_leftover(ref, part.tags):
        # In a group that a spec names, nothing proves whose resource it is, so gpuinfra does not delete it.
        kind = "disk" if ref.kind is Kind.DISK else "network public-ip"
        command = f"az {kind} delete --resource-group {quote(ref.group)} --name {quote(ref.name)}"
    price = address_per_month() if ref.kind is Kind.PUBLIC_IP else None
    return UnmanagedResource(ref, Reason.NO_MACHINE, f"{CAUSE}: {name}", command, per_month=price)


def _foreign(rows: Rows, keys: Collection[str], prices: Prices) -> Iterator[UnmanagedResource]:
    machines = [machine_of_row(row) for row in rows]
    groups = {machine.ref.group.casefold() for machine in machines if owner_of(machine) is Owner.OURS}
    groups |= {key.rpartition("/")[0] or default_group(key) for key in keys}
    for machine in machines:
        is_foreign = owner_of(machine) in {Owner.OTHER, Owner.LOOKALIKE}
        if is_foreign and machine.ref.group.casefold() in groups and _GPU.match(machine.size):
            price = prices.price(machine.size, machine.region, spot=machine.is_spot)
            cause = "gpuinfra did not create it, and leaves it alone"
            yield UnmanagedResource(machine.ref, Reason.FOREIGN, cause, None, machine.power, machine.size, price)


def missing(rows: Rows, specs: Sequence[LocatedSpec], prices: Prices) -> list[MissingMachine]:
    """Return the specs without a machine, in their order."""
    there = {machine_key(machine.ref.group, machine.ref.name) for machine in map(machine_of_row, rows)}
    return [
        MissingMachine(
            spec.name,
            spec.group_name,
            located.span.file,
            prices.price(spec.candidate_sizes[0], spec.regions[0], spot=spec.priority == "spot"),
        )
        for located in specs
        if machine_key((spec := located.spec).group_name, spec.name) not in there
    ]


def with_disk(found: UnmanagedResource, disk: ObservedResource | None, parts: Sequence[Listed]) -> UnmanagedResource:
    """Return a resource with the price of its disk, and of the public IP of a VM."""
    if found.reason is Reason.FOREIGN or found.ref.kind is Kind.PUBLIC_IP:
        return found
    price = disk_price(disk) if disk else 0.0
    if found.ref.kind is Kind.VM and price is not None:
        address = ref_of(Kind.PUBLIC_IP, found.ref.group, found.ref.name)
        price += address_per_month() if any(same(part.ref, address) for part in parts) else 0.0
    return replace(found, per_month=price)


def billed_now(rows: Rows, keys: Collection[str], prices: Prices) -> list[float | None]:
    """Return the hourly prices of the machines with a spec that are billed now."""
    machines = [machine_of_row(row) for row in rows]
    return [
        prices.price(each.size, each.region, spot=each.is_spot)
        for each in machines
        if owner_of(each) is Owner.OURS
        and machine_key(each.ref.group, each.ref.name) in keys
        and each.power not in {"deallocated", "deallocating"}
    ]
