"""Describe the state of a machine's lease from its tags. Pure."""

from __future__ import annotations

from datetime import datetime

from gpuinfra.models.durations import format_duration
from gpuinfra.models.hours import Hours
from gpuinfra.models.lease import LeaseState
from gpuinfra.models.spec import Lifecycle
from gpuinfra.provision import fleet, tags
from gpuinfra.provision.costing.history import History
from gpuinfra.provision.hours import hours_to_tag
from gpuinfra.provision.lifecycle.lease import LEASE, cap_end, cause, restarted_at, settled
from gpuinfra.provision.lifecycle.renew import Renewed
from gpuinfra.provision.market.port import Prices
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.power import DEALLOCATED
from gpuinfra.provision.terms import terms_from_tag, terms_of


def lease_state(
    machine: ObservedResource,
    hours: Hours | None,
    now: datetime,
    prices: Prices,
    renewed: Renewed | None = None,
    *,
    past: History | None = None,
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
