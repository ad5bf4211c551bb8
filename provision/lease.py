"""Decide until when a machine may be on: at every power-on, and when the spec changes.

One time applies to all layers that can switch the machine off. It is the lease's end or, inside the spec's hours, the
end of the hours; the cost cap takes precedence over both. A tag stores this time, and a machine that is on afterwards
should be off.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

from gpuinfra.models.base import MAX_DURATION, format_duration, parse_duration
from gpuinfra.models.hours import DAYS, Hours, Window
from gpuinfra.models.spec import Lifecycle, Spec
from gpuinfra.provision import tags
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.power import BILLED
from gpuinfra.provision.purpose import is_held

MAX_TAG = 256
"""Azure's limit for a tag value."""
DAY = 24 * 60
# The week repeats; a window that a clock change skips opens in the next week.
HORIZON = timedelta(days=15)


def is_on(hours: Hours, moment: datetime) -> bool:
    """Return whether the hours allow the machine to be on at this time."""
    wall = moment.astimezone(ZoneInfo(hours.timezone))
    today, minute = wall.date(), wall.hour * 60 + wall.minute
    return any(_holds(window, today, minute, hours.holidays or ()) for window in hours.on)


def next_change(hours: Hours, moment: datetime) -> tuple[datetime, bool] | None:
    """Return the next change after this time, in UTC, and whether the machine is on then; None if there is none."""
    now = is_on(hours, moment)
    for edge in _edges(hours, moment):
        if edge > moment and is_on(hours, edge) != now:
            return edge, not now
    return None


def hours_to_tag(hours: Hours) -> str | None:
    """Return a text like `America/Chicago mon-fri 08:00-19:00;sat 10:00-14:00`, or None if it is too long for a tag.

    Holidays do not fit into it: clients that start machines have the specs.
    """
    text = f"{hours.timezone} {';'.join(_compact(window) for window in hours.on)}"
    return text if len(text) <= MAX_TAG else None


def hours_from_tag(text: str) -> Hours | None:
    """Parse the text from `hours_to_tag`; return None for other text, because anyone can write a tag."""
    timezone, _, windows = text.partition(" ")
    if len(text) > MAX_TAG:
        return None
    try:
        return Hours.model_validate({"timezone": timezone, "on": tuple(windows.split(";"))})
    except ValueError:
        return None


def _holds(window: Window, today: date, minute: int, holidays: tuple[date, ...]) -> bool:
    for start, end in window.ranges:
        over_midnight = end <= start
        begins_today = start <= minute and (over_midnight or minute < end)
        if begins_today and _begins(window, today, holidays):
            return True
        if over_midnight and minute < end and _begins(window, today - timedelta(days=1), holidays):
            return True
    return False


def _begins(window: Window, day: date, holidays: tuple[date, ...]) -> bool:
    if day.weekday() not in window.days:
        return False
    place = bisect_left(holidays, day)
    return holidays[place : place + 1] != (day,)


def _edges(hours: Hours, moment: datetime) -> Iterator[datetime]:
    """Yield, in order, each time at which the state could change: ends of ranges, midnights, clock changes."""
    zone = ZoneInfo(hours.timezone)
    minutes = {0, *(minute % DAY for window in hours.on for edges in window.ranges for minute in edges)}
    waiting: set[datetime] = set()
    for day in _days(hours, moment.astimezone(zone).date()):
        for minute in minutes:
            wall = datetime.combine(day, time(minute // 60, minute % 60), zone)
            waiting |= {wall.astimezone(UTC), wall.replace(fold=1).astimezone(UTC)}
        waiting |= {*_clock_change(zone, day)}
        # Every zone is less than a day from UTC, so later days add only times after this day's start in UTC.
        come = {edge for edge in waiting if edge <= datetime.combine(day, time(), UTC)}
        yield from sorted(come)
        waiting -= come
    yield from sorted(waiting)


def _days(hours: Hours, first: date) -> Iterator[date]:
    """Yield the days to examine: from `first` to the horizon, and as many after each later holiday.

    During holidays nothing may change, so the next change can be after the last of them.
    """
    day = first - timedelta(days=1)  # which may be today in UTC
    for start in (first, *(holiday for holiday in hours.holidays or () if holiday > first)):
        day = max(day, start - timedelta(days=1))
        while day <= start + HORIZON:
            yield day
            day += timedelta(days=1)


def _clock_change(zone: ZoneInfo, day: date) -> Iterator[datetime]:
    """Yield the minute of this UTC day at which the zone's clocks change, if they do."""
    before = datetime.combine(day, time(), UTC)
    after = before + timedelta(days=1)
    if _offset(zone, before) == _offset(zone, after):
        return
    while after - before > timedelta(minutes=1):
        middle = (before + (after - before) / 2).replace(second=0, microsecond=0)
        if _offset(zone, middle) == _offset(zone, before):
            before = middle
        else:
            after = middle
    yield after


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()


def _compact(window: Window) -> str:
    """Return the window with consecutive days abbreviated, as in `mon-fri`."""
    if len(window.days) == len(DAYS):
        return str(window)
    runs: list[list[int]] = []
    for day in window.days:
        if runs and runs[-1][-1] == day - 1:
            runs[-1].append(day)
        else:
            runs.append([day])
    days = ",".join(DAYS[run[0]] if len(run) == 1 else f"{DAYS[run[0]]}-{DAYS[run[-1]]}" for run in runs)
    return f"{days} {str(window).partition(' ')[2]}"


MINUTE = timedelta(minutes=1)
MAX_CAP = timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Terms:
    """The lease length, the idle time limit, and the time limit from the cost cap."""

    lease: timedelta
    idle: timedelta
    cap: timedelta | None = None
    """The cost cap as a duration from power-on; None without a cap or a price."""


def terms_of(lifecycle: Lifecycle, price_per_hour: float | None) -> Terms:
    """Return the terms from a spec, with the hourly price of the actual VM."""
    return Terms(lifecycle.lease, lifecycle.idle, _cap(lifecycle, price_per_hour))


def _cap(lifecycle: Lifecycle, price_per_hour: float | None) -> timedelta | None:
    """Return the time that the cost cap pays for, rounded down to minutes, but at least one minute."""
    if lifecycle.max_cost is None or not price_per_hour:
        return None
    hours = lifecycle.max_cost.dollars / Decimal(str(price_per_hour))
    minutes = int(hours * 60)
    return min(MAX_CAP, max(MINUTE, minutes * MINUTE))


def terms_to_tag(terms: Terms) -> str:
    """Return a text like `lease=4h idle=20m cap=9h30m`."""
    found = {"lease": terms.lease, "idle": terms.idle, "cap": terms.cap}
    return " ".join(f"{name}={format_duration(value)}" for name, value in found.items() if value)


def terms_from_tag(text: str) -> Terms | None:
    """Parse the text from `terms_to_tag`; return None for other text, because anyone can write a tag."""
    words = dict(word.partition("=")[::2] for word in text.split())
    try:
        cap = parse_duration(words["cap"]) if "cap" in words else None
        return Terms(parse_duration(words["lease"]), parse_duration(words["idle"]), cap)
    except (KeyError, ValueError):
        return None


LEASE, HOURS, CAP = "lease", "hours", "cost cap"
"""What determines the end of a machine's lease."""
_OVER = {LEASE: "lease is over", HOURS: "hours are over", CAP: "cost cap is reached"}
STARTED_OUTSIDE = "lease is over; started or changed outside gpuinfra since then"
TOO_LONG = "its lease ends later than any lease can"
BACKSTOP = timedelta(minutes=35)
"""How long after the end of the lease Azure's daily schedule stops the machine.

A change shortly before the schedule fires takes effect only the next day. Sources name windows of 1 to 31 minutes. With
this margin, both an extension at the last moment of a lease and a new end in the near future are outside that window.
"""
LONGEST = MAX_DURATION + HORIZON
"""The longest time to the end of a lease: the longest lease, and the hours that extend it. A tag with a later end was
written by others: it would keep the machine on with every layer waiting for that end."""
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
    until = None if until and is_too_long(until, now) else until
    if machine is None or machine.power not in BILLED or since is None:
        since, until = now.replace(microsecond=0), None
    if machine is None or until is None:
        return Lease(since, settled(now + terms.lease, since, terms, hours), now)
    if restarted := restarted_at(machine):
        return Lease(restarted, settled(now + terms.lease, restarted, terms, hours), now)
    if is_held(machine.tags):
        # Its end is that of a look at a failed job, and too early for anything else.
        return Lease(since, settled(now + terms.lease, since, terms, hours), now)
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
    return until is None or until <= now or is_too_long(until, now)


def is_too_long(until: datetime, now: datetime) -> bool:
    """Return whether no lease can end this late."""
    return until - now > LONGEST + timedelta(days=1)


def is_last_day(marks: Mapping[str, str] | None, now: datetime) -> bool:
    """Return whether a lease was too long for Azure's schedule, which is off so far, and no longer is."""
    since, until = tags.moment(marks, tags.ON_SINCE), tags.moment(marks, tags.LEASE_UNTIL)
    return (
        since is not None
        and until is not None
        and now < until
        and Lease(until=until, on_since=now).is_daily
        and not Lease(until=until, on_since=since).is_daily
    )


def why_over(marks: Mapping[str, str] | None, now: datetime, hours: Hours | None = None) -> str:
    """Return why the machine should be off, as in `lease is over`, or an empty string. `hours` as for `cause`."""
    if not is_over(marks, now):
        return ""
    until = tags.moment(marks, tags.LEASE_UNTIL)
    if until is None:
        return "it has no lease"
    return _OVER[cause(marks, hours)] if until <= now else TOO_LONG


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
