"""Until when a machine may be on: decided at every power-on, and when the spec says something else.

One moment says it, for all who can switch it off: the lease's end; inside the spec's hours, their end; the cost cap
beats both. It is kept in a tag, and a machine that is on after it should be off.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from gpuinfra.models.hours import Hours
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import ObservedResource
from gpuinfra.provision.lifecycle.hours import from_tag as hours_from_tag
from gpuinfra.provision.lifecycle.hours import is_on, next_change
from gpuinfra.provision.lifecycle.hours import to_tag as hours_to_tag
from gpuinfra.provision.lifecycle.terms import Terms, terms_of
from gpuinfra.provision.lifecycle.terms import from_tag as terms_from_tag
from gpuinfra.provision.plan_input import Lease

ON = frozenset({"running", "starting", "stopped", "stopping"})
"""Power states that are billed."""
LEASE, HOURS, CAP = "lease", "hours", "cost cap"
"""What the moment at which a machine goes off depends on."""
_OVER = {LEASE: "lease is over", HOURS: "hours are over", CAP: "cost cap is reached"}
_MINUTE = timedelta(minutes=1)


def decide(spec: Spec, machine: ObservedResource | None, now: datetime, terms: Terms | None = None) -> Lease:
    """A machine that is on keeps its lease; one that is off, or whose lease is over, gets a new one."""
    terms, hours = terms or terms_of(spec.lifecycle, None), spec.lifecycle.hours
    since = tags.moment(machine.tags, tags.ON_SINCE) if machine else None
    until = tags.moment(machine.tags, tags.LEASE_UNTIL) if machine else None
    if machine is None or machine.power not in ON or since is None or until is None:
        since = now.replace(microsecond=0)
        return Lease(since, settled(now + terms.lease, since, terms, hours), now)
    if _says_another_end(spec, machine):
        until = settled(since + terms.lease, since, terms, hours)
    elif cause(machine.tags, hours) == CAP:
        # The cap may be another by now. Without it, the end would be at least that of a whole lease.
        until = settled(max(until, since + terms.lease), since, terms, hours)
    if until <= now:
        until = settled(now + terms.lease, since, terms, hours)
    return Lease(since, _capped(until, since, terms), now)


def _says_another_end(spec: Spec, machine: ObservedResource) -> bool:
    """Whether the spec has another lease or other hours by now. Whatever else was changed in it, a lease that somebody
    has renewed for a job holds. Of holidays a tag says nothing."""
    if tags.get(machine.tags, tags.DIGEST) == spec.digest():
        return False
    had, hours = terms_from_tag(tags.get(machine.tags, tags.TERMS)), spec.lifecycle.hours
    if had is None or had.lease != spec.lifecycle.lease or (hours and hours.holidays):
        return True
    # What is too long for a tag cannot be compared.
    return tags.get(machine.tags, tags.HOURS) != (hours_to_tag(hours) if hours else "")


def kept_terms(spec: Spec, machine: ObservedResource | None) -> Terms | None:
    """What a machine that is on was promised when it was switched on; None where the spec says something else since.

    Prices change while a machine is on, and its cap does not.
    """
    if machine is None or machine.power not in ON or tags.get(machine.tags, tags.DIGEST) != spec.digest():
        return None
    found = terms_from_tag(tags.get(machine.tags, tags.TERMS))
    own = spec.lifecycle
    if found is None or (found.lease, found.idle) != (own.lease, own.idle):
        return None  # somebody has written into the tag
    return found if (found.cap is None) == (own.max_cost is None) else None


def settled(wanted: datetime, since: datetime, terms: Terms, hours: Hours | None) -> datetime:
    """The moment at which it goes off, where its lease is to end at `wanted`. Hours that never end hold nothing."""
    until = _whole_minute(wanted)
    change = next_change(hours, until) if hours and is_on(hours, until) else None
    return _capped(change[0] if change else until, since, terms)


def cap_end(since: datetime, terms: Terms) -> datetime | None:
    """When the money is spent, never later; None where there is no cap."""
    return (since + terms.cap).replace(second=0, microsecond=0) if terms.cap else None


def is_over(marks: Mapping[str, str] | None, now: datetime) -> bool:
    """Whether a machine with these tags should be off. Without a lease that can be read, it should."""
    until = tags.moment(marks, tags.LEASE_UNTIL)
    return until is None or until <= now


def why_over(marks: Mapping[str, str] | None, now: datetime, hours: Hours | None = None) -> str:
    """In words, why it should be off: `lease is over`. Empty where it should not. `hours` as for `cause`."""
    if not is_over(marks, now):
        return ""
    return _OVER[cause(marks, hours)] if tags.moment(marks, tags.LEASE_UNTIL) else "it has no lease"


def cause(marks: Mapping[str, str] | None, hours: Hours | None = None) -> str:
    """What the moment in its tag depends on: LEASE, HOURS or CAP. `hours` are the spec's, where they are known."""
    since, until = tags.moment(marks, tags.ON_SINCE), tags.moment(marks, tags.LEASE_UNTIL)
    terms = terms_from_tag(tags.get(marks, tags.TERMS))
    if until is None:
        return LEASE
    end = cap_end(since, terms) if since and terms else None
    if end and until >= end:
        return CAP
    hours = hours or hours_from_tag(tags.get(marks, tags.HOURS))
    if hours and is_on(hours, until - _MINUTE) and not is_on(hours, until):
        return HOURS
    return LEASE


def _capped(until: datetime, since: datetime, terms: Terms) -> datetime:
    return min(until, cap_end(since, terms) or until)


def _whole_minute(moment: datetime) -> datetime:
    # Azure's schedule knows minutes; the tag and the schedule have to say the same.
    return (moment + timedelta(seconds=59)).replace(second=0, microsecond=0)
