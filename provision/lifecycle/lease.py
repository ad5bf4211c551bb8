"""Decide until when a machine may be on: at every power-on, and when the spec changes.

One time applies to all layers that can switch the machine off. It is the lease's end or, inside the spec's hours, the
end of the hours; the cost cap takes precedence over both. A tag stores this time, and a machine that is on afterwards
should be off.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpuinfra.models.hours import Hours
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.lifecycle.hours import hours_from_tag, hours_to_tag, is_on, next_change
from gpuinfra.provision.lifecycle.terms import Terms, terms_from_tag, terms_of
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.power import BILLED

LEASE, HOURS, CAP = "lease", "hours", "cost cap"
"""What determines the end of a machine's lease."""
_OVER = {LEASE: "lease is over", HOURS: "hours are over", CAP: "cost cap is reached"}
STARTED_OUTSIDE = "lease is over; started or changed outside gpuinfra since then"
BACKSTOP = timedelta(minutes=35)
"""How long after the end of the lease Azure's daily schedule stops the machine.

A change shortly before the schedule fires takes effect only the next day. Sources name windows of 1 to 31 minutes. With
this margin, both an extension at the last moment of a lease and a new end in the near future are outside that window.
"""
_MINUTE = timedelta(minutes=1)


@dataclass(frozen=True)
class Lease:
    """The time that a machine may be on."""

    on_since: datetime
    until: datetime
    decided: datetime | None = field(default=None, compare=False)
    """When this was decided; None means at power-on."""

    @property
    def backstop(self) -> datetime:
        """When Azure's schedule stops the machine if nothing else has."""
        return self.until + BACKSTOP

    @property
    def is_daily(self) -> bool:
        """Whether Azure's schedule can end the lease: it has a time of day but no date."""
        return self.backstop - (self.decided or self.on_since) < timedelta(days=1)


def decide(spec: Spec, machine: ObservedResource | None, now: datetime, terms: Terms | None = None) -> Lease:
    """Return the current lease of a machine that is on, or a new one if it is off or its lease is over."""
    terms, hours = terms or terms_of(spec.lifecycle, None), spec.lifecycle.hours
    since = tags.moment(machine.tags, tags.ON_SINCE) if machine else None
    until = tags.moment(machine.tags, tags.LEASE_UNTIL) if machine else None
    if machine is None or machine.power not in BILLED or since is None or until is None:
        since = now.replace(microsecond=0)
        return Lease(since, settled(now + terms.lease, since, terms, hours), now)
    if restarted := restarted_at(machine):
        return Lease(restarted, settled(now + terms.lease, restarted, terms, hours), now)
    if _says_another_end(spec, machine):
        until = settled(since + terms.lease, since, terms, hours)
    elif cause(machine.tags, hours) == CAP:
        # The cap may have changed. Without it, the lease would last at least its full length.
        until = settled(max(until, since + terms.lease), since, terms, hours)
    if until <= now:
        until = settled(now + terms.lease, since, terms, hours)
    return Lease(since, _capped(until, since, terms), now)


def _says_another_end(spec: Spec, machine: ObservedResource) -> bool:
    """Return whether the spec's lease or hours changed. After other changes, a lease renewed for a job stays valid.

    The tag has no holidays, so any change to a spec with holidays counts.
    """
    if tags.get(machine.tags, tags.DIGEST) == spec.digest():
        return False
    had, hours = terms_from_tag(tags.get(machine.tags, tags.TERMS)), spec.lifecycle.hours
    if had is None or had.lease != spec.lifecycle.lease or (hours and hours.holidays):
        return True
    # Hours that are too long for a tag cannot be compared.
    return tags.get(machine.tags, tags.HOURS) != (hours_to_tag(hours) if hours else "")


def kept_terms(spec: Spec, machine: ObservedResource | None) -> Terms | None:
    """Return the terms that a machine was switched on with, or None if the spec changed since.

    Prices may change while a machine is on; its cap does not.
    """
    if machine is None or machine.power not in BILLED or tags.get(machine.tags, tags.DIGEST) != spec.digest():
        return None
    found = terms_from_tag(tags.get(machine.tags, tags.TERMS))
    own = spec.lifecycle
    if found is None or (found.lease, found.idle) != (own.lease, own.idle):
        return None  # the tag was changed by others
    return found if (found.cap is None) == (own.max_cost is None) else None


def settled(wanted: datetime, since: datetime, terms: Terms, hours: Hours | None) -> datetime:
    """Return when the machine goes off if its lease should end at `wanted`. Hours that never end are ignored."""
    until = _whole_minute(wanted)
    change = next_change(hours, until) if hours and is_on(hours, until) else None
    return _capped(change[0] if change else until, since, terms)


def cap_end(since: datetime, terms: Terms) -> datetime | None:
    """Return when the cost cap is reached, rounded down to a minute, or None without a cap."""
    return (since + terms.cap).replace(second=0, microsecond=0) if terms.cap else None


def is_over(marks: Mapping[str, str] | None, now: datetime) -> bool:
    """Return whether a machine with these tags should be off. It should if it has no valid lease."""
    until = tags.moment(marks, tags.LEASE_UNTIL)
    return until is None or until <= now


def why_over(marks: Mapping[str, str] | None, now: datetime, hours: Hours | None = None) -> str:
    """Return why the machine should be off, as in `lease is over`, or an empty string. `hours` as for `cause`."""
    if not is_over(marks, now):
        return ""
    return _OVER[cause(marks, hours)] if tags.moment(marks, tags.LEASE_UNTIL) else "it has no lease"


def cause(marks: Mapping[str, str] | None, hours: Hours | None = None) -> str:
    """Return what determines the end in the tag: LEASE, HOURS or CAP. `hours` are the spec's, if known."""
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


def restarted_at(machine: ObservedResource) -> datetime | None:
    """Return when a machine was started outside gpuinfra after the end of its lease, or None.

    Azure changed the VM after the end in its tag, which belongs to the previous time on. Lease and cost cap count from
    this start. A change of its tags by others looks the same.
    """
    until, changed = tags.moment(machine.tags, tags.LEASE_UNTIL), machine.changed
    if machine.power not in BILLED or machine.state == "Failed" or until is None or changed is None or changed <= until:
        return None
    return changed.replace(microsecond=0)


def why_off(machine: ObservedResource, now: datetime, hours: Hours | None = None) -> str:
    """Return why the machine should be off, as `why_over` does, or that it was started outside gpuinfra."""
    return STARTED_OUTSIDE if restarted_at(machine) else why_over(machine.tags, now, hours)


def _capped(until: datetime, since: datetime, terms: Terms) -> datetime:
    return min(until, cap_end(since, terms) or until)


def _whole_minute(moment: datetime) -> datetime:
    # Azure's schedule has whole minutes, and the tag must match it.
    return (moment + timedelta(seconds=59)).replace(second=0, microsecond=0)
