"""Describe all our machines in a subscription, and the lease of one, from listings, specs and the current time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpuinfra.models.base import format_duration
from gpuinfra.models.hours import Hours
from gpuinfra.models.machine import LeaseState, Machine, ScheduledChange
from gpuinfra.models.spec import Lifecycle
from gpuinfra.provision import tags
from gpuinfra.provision.costing.history import CostHistory
from gpuinfra.provision.exposure import Network
from gpuinfra.provision.lease import (
    BACKSTOP,
    LEASE,
    cap_end,
    cause,
    hours_from_tag,
    hours_to_tag,
    next_change,
    restarted_at,
    settled,
    terms_from_tag,
    terms_of,
    why_off,
)
from gpuinfra.provision.market import Prices
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import UNTAGGED, Owner, left_alone_machine, machine_of_row, owner_of
from gpuinfra.provision.power import DEALLOCATED, NOT_BILLED, RUNNING, STOPPED, STOPPED_BUT_BILLED
from gpuinfra.provision.purpose import purpose_of
from gpuinfra.provision.renew import Renewed

if TYPE_CHECKING:
    from gpuinfra.models.spec import Spec
    from gpuinfra.parse.spec import LocatedSpec
    from gpuinfra.provision.costing.history import CostHistory

_SHOWN = {Owner.OURS, Owner.UNTAGGED}


def machines(
    rows: Sequence[Mapping[str, Any]],
    specs: Sequence[LocatedSpec],
    now: datetime,
    prices: Prices,
    histories: Mapping[str, CostHistory] | None = None,
    network: Network | None = None,
) -> list[Machine]:
    """Return our machines sorted by name, including those that lost their tags.

    `rows` are VM bodies with instance views. `histories` maps each VM's lower-case ID to its history.
    """
    by_name = {_key(located.spec.group_name, located.spec.name): located for located in specs}
    known = histories or {}
    vms = [vm for vm in map(machine_of_row, rows) if owner_of(vm) in _SHOWN]
    found = [
        machine_of(
            vm,
            by_name.get(_key(vm.ref.group, vm.ref.name)),
            now,
            prices,
            known.get(str(vm.body["id"]).casefold()),
            network,
        )
        for vm in vms
    ]
    return sorted(found, key=lambda machine: (machine.name.casefold(), machine.group.casefold()))


def lookalikes(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Describe each machine that has our tag and is not ours."""
    found = {Owner.UNRECOGNISED, Owner.LOOKALIKE}
    vms = [vm for vm in map(machine_of_row, rows) if owner_of(vm) in found]
    return tuple(sorted(map(left_alone_machine, vms)))


def _key(group: str, name: str) -> str:
    return f"{group}/{name}".casefold()


def sizes(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the VM sizes whose prices are needed."""
    vms = (vm for vm in map(machine_of_row, rows) if owner_of(vm) in _SHOWN)
    return tuple(dict.fromkeys(vm.size for vm in vms))


def machine_of(
    vm: ObservedResource,
    located: LocatedSpec | None,
    now: datetime,
    prices: Prices,
    past: CostHistory | None = None,
    network: Network | None = None,
) -> Machine:
    """Return one machine, compared with its spec if there is one. `past` has the last power change and the cost."""
    spec = located.spec if located else None
    hours = _hours(vm, spec)
    return Machine(
        name=vm.ref.name,
        power_state=vm.power,
        provisioning_state=vm.state,
        region=vm.region,
        size=vm.size,
        group=vm.ref.group,
        since=(past.since if past else None) or _since(vm),
        zone=vm.zone,
        spot=vm.is_spot,
        price_per_hour=prices.price(vm.size, vm.region, spot=vm.is_spot),
        lease_until=tags.moment(vm.tags, tags.LEASE_UNTIL),
        next_change=_next_change(vm, hours, now),
        drift=(*_drift(vm, spec, hours, now), *(network.exposures(vm, spec) if network else ())),
        spec_file=located.span.file if located else None,
        cost=past.last_cost if past and vm.power != DEALLOCATED else None,
        counted=now if past else None,
        tagged=owner_of(vm) is Owner.OURS,
        purpose=None if vm.power == DEALLOCATED else purpose_of(vm.tags),
    )


def _since(vm: ObservedResource) -> datetime | None:
    """Return when the machine was last switched on or off, without the log: from our tags and Azure's last change."""
    on, until = tags.moment(vm.tags, tags.ON_SINCE), tags.moment(vm.tags, tags.LEASE_UNTIL)
    if vm.power != DEALLOCATED:
        return on or vm.changed
    # After the lease, Azure's daily schedule changes a machine that is off already.
    return min(vm.changed, until + BACKSTOP) if vm.changed and until else vm.changed


def _hours(vm: ObservedResource, spec: Spec | None) -> Hours | None:
    """Return the hours from the spec, which knows holidays, or from the tag if the spec changed since `up`."""
    if spec and tags.get(vm.tags, tags.DIGEST) == spec.digest():
        return spec.lifecycle.hours
    return hours_from_tag(tags.get(vm.tags, tags.HOURS)) or (spec.lifecycle.hours if spec else None)


def _next_change(vm: ObservedResource, hours: Hours | None, now: datetime) -> ScheduledChange | None:
    if vm.power != DEALLOCATED:
        lease = tags.moment(vm.tags, tags.LEASE_UNTIL)
        # A machine that should already be off has no upcoming change.
        return ScheduledChange(lease, DEALLOCATED, cause(vm.tags, hours)) if lease and lease > now else None
    change = next_change(hours, now) if hours else None
    return ScheduledChange(change[0], RUNNING, "hours") if change and change[1] else None


def _drift(vm: ObservedResource, spec: Spec | None, hours: Hours | None, now: datetime) -> Iterator[str]:
    if owner_of(vm) is not Owner.OURS:
        yield f"{UNTAGGED}; `gpuinfra up --adopt SPEC` restores its tags"
        return
    yield from _waste(vm, hours, now)
    if spec:
        yield from _drift_from(spec, vm)


def _waste(vm: ObservedResource, hours: Hours | None, now: datetime) -> Iterator[str]:
    """Describe problems that do not depend on the spec."""
    if vm.state == "Failed":
        yield "provisioning failed"
    if vm.power in NOT_BILLED:
        return
    if vm.power == STOPPED:
        yield STOPPED_BUT_BILLED
    if why := why_off(vm, now, hours):
        yield why


def _drift_from(spec: Spec, vm: ObservedResource) -> Iterator[str]:
    if spec.power == DEALLOCATED and vm.power not in NOT_BILLED:
        yield "should be off"
    if tags.get(vm.tags, tags.DIGEST) != spec.digest():
        yield "spec changed since up"
    if vm.region not in spec.regions:
        yield f"region {vm.region} is not in the spec"
    if vm.size not in spec.candidate_sizes:
        yield f"size {vm.size} is not in the spec"
    if spec.zones and vm.zone not in spec.zones:
        yield f"zone {vm.zone or 'none'} is not in the spec"


def lease_state(
    machine: ObservedResource,
    hours: Hours | None,
    now: datetime,
    prices: Prices,
    renewed: Renewed | None = None,
    *,
    past: CostHistory | None = None,
    simulated: bool = False,
) -> LeaseState:
    """Return the state of the lease. `renewed` is the change just made, and `past` has the cost."""
    terms = terms_from_tag(tags.get(machine.tags, tags.TERMS)) or terms_of(Lifecycle(), None)
    restarted = restarted_at(machine)
    since = restarted or tags.moment(machine.tags, tags.ON_SINCE)
    shown = machine_of(machine, None, now, prices, past)
    is_on = shown.power_state != DEALLOCATED
    return LeaseState(
        machine=shown,
        now=now,
        cause=LEASE if restarted else cause(machine.tags, hours),
        lease=format_duration(terms.lease),
        idle=format_duration(terms.idle),
        cap=format_duration(terms.cap) if terms.cap else None,
        cap_at=cap_end(since, terms) if since and is_on else None,
        hours=(hours_to_tag(hours) or f"{hours.timezone} {'; '.join(map(str, hours.on))}") if hours else None,
        changed=renewed.changed if renewed else False,
        capped=renewed.capped if renewed else False,
        old_stop=renewed.old_stop if renewed else None,
        restarted=restarted,
        agent_until=settled(restarted + terms.lease, restarted, terms, None) if restarted else None,
        simulated=simulated,
    )
