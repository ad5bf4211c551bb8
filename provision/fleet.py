"""Describe all our machines in a subscription, and the lease of one, from listings, specs and the current time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpuinfra.models.hours import Hours
from gpuinfra.models.machine import LeaseState, Machine, ScheduledChange
from gpuinfra.models.quantities import format_duration
from gpuinfra.models.spec import Lifecycle
from gpuinfra.provision import fleet, tags
from gpuinfra.provision.costing.history import CostHistory
from gpuinfra.provision.lifecycle.hours import hours_from_tag, hours_to_tag, next_change
from gpuinfra.provision.lifecycle.lease import LEASE, cap_end, cause, restarted_at, settled, why_off
from gpuinfra.provision.lifecycle.terms import terms_from_tag, terms_of
from gpuinfra.provision.market.port import Prices
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import UNTAGGED, Owner, left_alone_machine, machine_of_row, owner_of
from gpuinfra.provision.power import DEALLOCATED, NOT_BILLED, RUNNING, STOPPED, STOPPED_BUT_BILLED
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
) -> list[Machine]:
    """Return our machines sorted by name, including those that lost their tags.

    `rows` are VM bodies with instance views. `histories` maps each VM's lower-case ID to its history.
    """
    by_name = {_key(located.spec.group_name, located.spec.name): located for located in specs}
    known = histories or {}
    parts = [part for part in map(machine_of_row, rows) if owner_of(part) in _SHOWN]
    found = [
        machine_of(
            part,
            by_name.get(_key(part.ref.group, part.ref.name)),
            now,
            prices,
            known.get(str(part.body["id"]).casefold()),
        )
        for part in parts
    ]
    return sorted(found, key=lambda machine: (machine.name.casefold(), machine.group.casefold()))


def lookalikes(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Describe each machine that has our tag and is not ours."""
    found = {Owner.UNRECOGNISED, Owner.LOOKALIKE}
    parts = [part for part in map(machine_of_row, rows) if owner_of(part) in found]
    return tuple(sorted(map(left_alone_machine, parts)))


def _key(group: str, name: str) -> str:
    return f"{group}/{name}".casefold()


def sizes(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the VM sizes whose prices are needed."""
    parts = (part for part in map(machine_of_row, rows) if owner_of(part) in _SHOWN)
    return tuple(dict.fromkeys(part.size for part in parts))


def machine_of(
    part: ObservedResource, located: LocatedSpec | None, now: datetime, prices: Prices, past: CostHistory | None = None
) -> Machine:
    """Return one machine, compared with its spec if there is one. `past` has the last power change and the cost."""
    spec = located.spec if located else None
    hours = _hours(part, spec)
    return Machine(
        name=part.ref.name,
        power_state=part.power,
        provisioning_state=part.state,
        region=part.region,
        size=part.size,
        group=part.ref.group,
        since=(past.since if past else None) or _since(part),
        zone=part.zone,
        spot=part.is_spot,
        price_per_hour=prices.price(part.size, part.region, spot=part.is_spot),
        lease_until=tags.moment(part.tags, tags.LEASE_UNTIL),
        next_change=_next_change(part, hours, now),
        drift=tuple(_drift(part, spec, hours, now)),
        spec_file=located.span.file if located else None,
        cost=past.last_cost if past and past.is_on else None,
        counted=now if past else None,
        tagged=owner_of(part) is Owner.OURS,
    )


def _since(part: ObservedResource) -> datetime | None:
    """Return when the machine was last switched on or off: from our tag if on, from Azure's last change if off."""
    on = tags.moment(part.tags, tags.ON_SINCE)
    if on and part.power != DEALLOCATED:
        return on
    return part.changed


def _hours(part: ObservedResource, spec: Spec | None) -> Hours | None:
    """Return the hours from the spec, which knows holidays, or from the tag if the spec changed since `up`."""
    if spec and tags.get(part.tags, tags.DIGEST) == spec.digest():
        return spec.lifecycle.hours
    return hours_from_tag(tags.get(part.tags, tags.HOURS)) or (spec.lifecycle.hours if spec else None)


def _next_change(part: ObservedResource, hours: Hours | None, now: datetime) -> ScheduledChange | None:
    if part.power != DEALLOCATED:
        lease = tags.moment(part.tags, tags.LEASE_UNTIL)
        # A machine that should already be off has no upcoming change.
        return ScheduledChange(lease, DEALLOCATED, cause(part.tags, hours)) if lease and lease > now else None
    change = next_change(hours, now) if hours else None
    return ScheduledChange(change[0], RUNNING, "hours") if change and change[1] else None


def _drift(part: ObservedResource, spec: Spec | None, hours: Hours | None, now: datetime) -> Iterator[str]:
    if owner_of(part) is not Owner.OURS:
        yield f"{UNTAGGED}; `gpuinfra up --adopt SPEC` restores its tags"
        return
    yield from _waste(part, hours, now)
    if spec:
        yield from _drift_from(spec, part)


def _waste(part: ObservedResource, hours: Hours | None, now: datetime) -> Iterator[str]:
    """Describe problems that do not depend on the spec."""
    if part.state == "Failed":
        yield "provisioning failed"
    if part.power in NOT_BILLED:
        return
    if part.power == STOPPED:
        yield STOPPED_BUT_BILLED
    if why := why_off(part, now, hours):
        yield why


def _drift_from(spec: Spec, part: ObservedResource) -> Iterator[str]:
    if spec.power == DEALLOCATED and part.power not in NOT_BILLED:
        yield "should be off"
    if tags.get(part.tags, tags.DIGEST) != spec.digest():
        yield "spec changed since up"
    if part.region not in spec.regions:
        yield f"region {part.region} is not in the spec"
    if part.size not in spec.candidate_sizes:
        yield f"size {part.size} is not in the spec"
    if spec.zones and part.zone not in spec.zones:
        yield f"zone {part.zone or 'none'} is not in the spec"


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
    shown = fleet.machine_of(machine, None, now, prices, past)
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
