"""Hours and leases against an oracle that checks every minute of two years, in five zones.

The oracle shares no code with the product: it reads the local time of each zone minute by minute, marks
the hours of a spec on a calendar of local minutes, and looks up there whether a machine is on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuinfra.models.hours import Hours
from gpuinfra.models.json_values import stamp
from gpuinfra.provision import tags
from gpuinfra.provision.lease import Terms, decide, hours_to_tag, is_on, is_over, next_change, terms_to_tag
from gpuinfra.provision.renew import renewal
from tests.unit.provision_help import spec

START, END = datetime(2026, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC)
MINUTES = int((END - START).total_seconds()) // 60
# By an hour in spring and autumn, by half an hour in reverse, never, and back for a moving month.
ZONES = ["America/Chicago", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kolkata", "Africa/Casablanca"]
# Local calendars begin before the first minute of UTC, and end after its last one.
FIRST_DAY, DAY = date(2025, 12, 30), 24 * 60
DAYS = (END.date() - FIRST_DAY).days + 3
NAMES = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"]


# The oracle


@cache
def stretches(zone: str) -> list[tuple[int, int]]:
    """Return local time in minutes of the local calendar: each start, and for how many minutes the clock runs
    without a change. Clocks change only at a quarter of an hour, which is checked."""
    place, found = ZoneInfo(zone), list[tuple[int, int]]()
    for quarter in range(0, MINUTES, 15):
        first, last = (_wall(START + timedelta(minutes=quarter + each), place) for each in (0, 14))
        assert last == first + 14
        start, length = found[-1] if found else (first, 0)
        if first == start + length:
            found[-1:] = [(start, length + 15)]
        else:
            found.append((first, 15))
    return found


def _wall(moment: datetime, place: ZoneInfo) -> int:
    wall = moment.astimezone(place)
    return (wall.toordinal() - FIRST_DAY.toordinal()) * DAY + wall.hour * 60 + wall.minute


@dataclass(frozen=True)
class Given:
    """Hours as plain data: the days and minutes of each range, and the excluded days."""

    zone: str
    windows: tuple[tuple[tuple[int, ...], tuple[tuple[int, int], ...]], ...]
    holidays: tuple[date, ...]

    def as_hours(self) -> Hours:
        on = tuple(
            f"{','.join(NAMES[day] for day in days)} "
            + ",".join(f"{start // 60:02}:{start % 60:02}-{end // 60:02}:{end % 60:02}" for start, end in ranges)
            for days, ranges in self.windows
        )
        holidays = {"holidays": tuple(day.isoformat() for day in self.holidays)} if self.holidays else {}
        return Hours.model_validate({"timezone": self.zone, "on": on, **holidays})

    def minutes(self) -> bytes:
        """Return a byte for every minute of UTC: whether a machine may be on."""
        calendar = bytearray(DAYS * DAY + 2 * DAY)
        for number in range(DAYS):
            day = FIRST_DAY + timedelta(days=number)
            for days, ranges in self.windows:
                if day.weekday() not in days or day in self.holidays:
                    continue
                for start, end in ranges:
                    length = end - start if end > start else end + DAY - start
                    first = number * DAY + start
                    calendar[first : first + length] = b"\1" * length
        return b"".join(bytes(calendar[first : first + length]) for first, length in stretches(self.zone))


def changes(minutes: bytes) -> Iterator[tuple[datetime, bool]]:
    """Return every change."""
    at, now = 0, minutes[0]
    while (at := minutes.find(1 - now, at)) >= 0:
        now = 1 - now
        yield START + timedelta(minutes=at), bool(now)


# Random hours

# Clocks change in the small hours.
clocks = (
    st.integers(0, DAY // 15 - 1).map(lambda quarter: quarter * 15) | st.integers(0, DAY - 1) | st.integers(0, 3 * 60)
)
ends = clocks | st.just(DAY)
ranges = st.tuples(clocks, ends).filter(lambda pair: pair[0] != pair[1] % DAY or pair == (0, DAY))
some_days = st.sampled_from([tuple(range(7)), tuple(range(5)), (5, 6), (6,)]) | st.sets(
    st.integers(0, 6), min_size=1
).map(lambda found: tuple(sorted(found)))
windows = st.lists(
    st.tuples(some_days, st.lists(ranges, min_size=1, max_size=2).map(tuple)), min_size=1, max_size=2
).map(tuple)
free_days = st.lists(
    st.dates(START.date(), END.date() - timedelta(days=40)).flatmap(
        lambda first: st.integers(0, 9).map(lambda more: [first + timedelta(days=each) for each in range(more + 1)])
    ),
    max_size=4,
).map(lambda found: tuple(sorted({day for each in found for day in each})))


def hours_in(zone: str) -> st.SearchStrategy[Given]:
    return st.builds(Given, st.just(zone), windows, free_days)


@pytest.mark.parametrize("zone", ZONES)
def test_every_change_of_two_years_matches_the_oracle(zone: str) -> None:
    @settings(max_examples=4, deadline=None)
    @given(hours_in(zone))
    def agree(given_hours: Given) -> None:
        hours, minutes = given_hours.as_hours(), given_hours.minutes()
        assert len(minutes) == MINUTES
        moment = START
        assert is_on(hours, moment) is bool(minutes[0])
        for edge, on in changes(minutes):
            assert next_change(hours, moment) == (edge, on)
            assert is_on(hours, edge) is on
            assert is_on(hours, edge - timedelta(seconds=1)) is not on
            moment = edge
        after = next_change(hours, moment)
        assert after is None or after[0] >= END

    agree()


# Leases of a machine, checked every minute


@dataclass
class Watched:
    """A machine with the hours of the calendar above."""

    minutes: bytes
    since: datetime
    lease: timedelta
    cap: timedelta | None
    until: int = 0

    def held(self, wanted: datetime) -> int:
        """Return the first minute from the end of its lease in which nothing keeps it on."""
        first = -((START - wanted) // timedelta(minutes=1))
        minute = self.minutes.find(0, first)
        if minute < 0:
            minute = first  # hours that never end
        return min(minute, (self.since + self.cap - START) // timedelta(minutes=1)) if self.cap else minute

    def moment(self) -> datetime:
        return START + timedelta(minutes=self.until)


requests = st.sampled_from(["", "", "extend", "extend", "release", "to"])
lengths = st.integers(1, 3 * DAY).map(lambda minutes: timedelta(minutes=minutes)) | st.just(timedelta(hours=4))
steps = st.lists(st.tuples(st.integers(1, 36 * 3600), requests, lengths), max_size=6)
begins = st.integers(0, (MINUTES - 45 * DAY) * 60).map(lambda seconds: START + timedelta(seconds=seconds))


@pytest.mark.parametrize("zone", ZONES)
def test_every_lease_ends_as_the_oracle_says(zone: str) -> None:
    @settings(max_examples=12, deadline=None)
    @given(hours_in(zone), begins, lengths, st.none() | lengths, steps)
    def agree(
        given_hours: Given,
        now: datetime,
        lease: timedelta,
        cap: timedelta | None,
        later: list[tuple[int, str, timedelta]],
    ) -> None:
        hours, terms = given_hours.as_hours(), Terms(lease, timedelta(minutes=20), cap)
        watched = Watched(given_hours.minutes(), now, lease, cap)
        watched.until = watched.held(now + lease)
        wanted = spec(lifecycle={"lease": lease, "hours": hours})
        found = decide(wanted, None, now, terms)
        assert (found.on_since, found.until) == (now, watched.moment())
        marks = {
            tags.ON_SINCE: stamp(now) or "",
            tags.TERMS: terms_to_tag(terms),
            tags.HOURS: hours_to_tag(hours) or "",
        }
        for seconds, request, length in later:
            now += timedelta(seconds=seconds)
            marks[tags.LEASE_UNTIL] = stamp(watched.moment()) or ""
            assert is_over(marks, now) is (watched.moment() <= now)
            _renew(watched, now, request, length)
            assert renewal(marks, now, hours=hours, **_arguments(request, now, length)).until == watched.moment()

    agree()


def _arguments(request: str, now: datetime, length: timedelta) -> dict[str, Any]:
    arguments: dict[str, Any] = {"extend": length, "release": True, "to": now + length}
    return {request: arguments[request]} if request else {}


def _renew(watched: Watched, now: datetime, request: str, length: timedelta) -> None:
    end = max(watched.moment(), now)
    if request == "release":
        watched.until = min(watched.until, watched.held(now + timedelta(seconds=1)))
    elif request == "extend":
        watched.until = watched.held(end + length)
    else:
        watched.until = watched.held(max(end, now + (length if request == "to" else watched.lease)))


def test_oracle_knows_daylight_saving() -> None:
    lengths_of = {zone: len(stretches(zone)) for zone in ZONES}
    # One stretch more than there are clock changes.
    assert lengths_of == {
        "America/Chicago": 5,
        "Europe/Berlin": 5,
        "Australia/Lord_Howe": 5,
        "Asia/Kolkata": 1,
        "Africa/Casablanca": 5,
    }
