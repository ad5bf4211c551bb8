"""Hours against an oracle that checks every minute."""

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuinfra.models.hours import DAYS, Hours
from gpuinfra.provision.lease import hours_from_tag, hours_to_tag, is_on, next_change

WEEK = 7 * 24 * 60
# Zones with a clock change near the start: forward and back, by half an hour, at midnight, and none.
STARTS = {
    "America/Chicago": datetime(2026, 3, 2, tzinfo=UTC),
    "Europe/Berlin": datetime(2026, 10, 19, tzinfo=UTC),
    "Australia/Lord_Howe": datetime(2026, 3, 30, tzinfo=UTC),
    "Africa/Cairo": datetime(2026, 4, 20, tzinfo=UTC),
    "America/Havana": datetime(2026, 10, 26, tzinfo=UTC),
    "Asia/Kolkata": datetime(2026, 3, 2, tzinfo=UTC),
}


def hours(zone: str, *windows: str) -> Hours:
    return Hours.model_validate({"timezone": zone, "on": windows})


@cache
def local_minutes(zone: str) -> list[int]:
    """Return the local time, as a minute of the week, for every minute of two weeks."""
    start, place = STARTS[zone], ZoneInfo(zone)
    shown = (start.astimezone(UTC) + timedelta(minutes=minute) for minute in range(2 * WEEK))
    times = (moment.astimezone(place) for moment in shown)
    return [time.weekday() * 1440 + time.hour * 60 + time.minute for time in times]


def oracle(wanted: Hours) -> list[bool]:
    week = [False] * WEEK
    for window in wanted.on:
        for day in window.days:
            for start, end in window.ranges:
                for minute in range(start, end if end > start else end + 1440):
                    week[(day * 1440 + minute) % WEEK] = True
    return [week[minute] for minute in local_minutes(wanted.timezone)]


clocks = st.builds("{:02}:{:02}".format, st.integers(0, 23), st.sampled_from([0, 1, 15, 30, 59]))
ranges = st.tuples(clocks, clocks | st.just("24:00")).filter(lambda pair: pair[0] != pair[1]).map("-".join)
days = st.sampled_from(["daily", "mon-fri", "sat,sun", "fri-mon", "thu", "sun"])
windows = st.builds("{} {}".format, days, st.lists(ranges, min_size=1, max_size=3).map(",".join))
all_hours = st.builds(
    lambda zone, texts: hours(zone, *texts), st.sampled_from(list(STARTS)), st.lists(windows, min_size=1, max_size=3)
)


@settings(max_examples=15, deadline=None)
@given(all_hours, st.data())
def test_hours_match_a_minute_by_minute_oracle(wanted: Hours, data: st.DataObject) -> None:
    start, expected = STARTS[wanted.timezone], oracle(wanted)
    for minute in data.draw(st.lists(st.integers(0, WEEK), min_size=3, max_size=3)):
        moment = start + timedelta(minutes=minute, seconds=data.draw(st.integers(0, 59)))
        assert is_on(wanted, moment) is expected[minute]
        later = next((each for each in range(minute, len(expected)) if expected[each] != expected[minute]), None)
        found = next_change(wanted, moment)
        if later is None:
            assert found is None or found[0] >= start + timedelta(minutes=2 * WEEK)
        else:
            assert found == (start + timedelta(minutes=later), expected[later])


@settings(max_examples=15, deadline=None)
@given(all_hours)
def test_tag_round_trips(wanted: Hours) -> None:
    text = hours_to_tag(wanted)
    assert text is not None
    assert len(text) <= 256
    assert hours_from_tag(text) == wanted


@pytest.mark.parametrize(
    ("zone", "text", "moment", "change", "on"),
    [
        # Chicago is at -6 before 8 March 2026, and at -5 after.
        ("America/Chicago", "mon-fri 08:00-19:00", "2026-03-06T14:00", "2026-03-07T01:00", False),
        ("America/Chicago", "mon-fri 08:00-19:00", "2026-03-07T01:00", "2026-03-09T13:00", True),
        # A start that the clock change skips: on as soon as the clock shows a later time.
        ("America/Chicago", "sun 02:30-05:00", "2026-03-08T07:00", "2026-03-08T08:00", True),
        # A window that it skips completely: on next week.
        ("America/Chicago", "sun 02:15-02:45", "2026-03-08T07:00", "2026-03-15T07:15", True),
        # A repeated hour counts twice.
        ("America/Chicago", "sun 01:00-01:30", "2026-11-01T06:45", "2026-11-01T07:00", True),
        # The same where clocks change at night and it is the evening before in UTC, as the lease oracle found.
        ("Australia/Lord_Howe", "daily 01:31-24:00", "2026-04-04T14:31", "2026-04-04T15:00", False),
        ("UTC", "fri 22:00-06:00", "2026-03-07T05:59", "2026-03-07T06:00", False),
        ("UTC", "daily 00:00-12:00,12:00-23:00", "2026-03-07T05:59", "2026-03-07T23:00", False),
    ],
)
def test_hours_follow_daylight_saving_and_midnight(zone: str, text: str, moment: str, change: str, on: bool) -> None:
    start = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    assert next_change(hours(zone, text), start) == (datetime.fromisoformat(change).replace(tzinfo=UTC), on)


def test_always_on_hours_never_change() -> None:
    assert next_change(hours("Europe/Berlin", "daily 00:00-24:00"), datetime(2026, 3, 27, tzinfo=UTC)) is None


@pytest.mark.parametrize(
    ("text", "holidays", "moment", "change", "on"),
    [
        # Friday 25 December is a holiday; so is all of January.
        ("mon-fri 08:00-19:00", ["2026-12-25"], "2026-12-24T19:00", "2026-12-28T08:00", True),
        ("thu-fri 22:00-06:00", ["2026-12-25"], "2026-12-25T01:00", "2026-12-25T06:00", False),  # it began before
        ("thu-fri 22:00-06:00", ["2026-12-25"], "2026-12-25T06:00", "2026-12-31T22:00", True),
        ("daily 00:00-24:00", ["2026-12-25"], "2026-11-01T00:00", "2026-12-25T00:00", False),
        ("daily 00:00-24:00", ["2026-12-25"], "2026-12-25T12:00", "2026-12-26T00:00", True),
        (
            "daily 08:00-09:00",
            [f"2027-01-{day:02}" for day in range(1, 32)],
            "2026-12-31T09:00",
            "2027-02-01T08:00",
            True,
        ),
    ],
)
def test_range_that_begins_on_a_holiday_does_not_open(
    text: str, holidays: list[str], moment: str, change: str, on: bool
) -> None:
    wanted = Hours.model_validate({"timezone": "UTC", "on": (text,), "holidays": tuple(holidays)})
    start = datetime.fromisoformat(moment).replace(tzinfo=UTC)
    assert is_on(wanted, start) is not on
    assert next_change(wanted, start) == (datetime.fromisoformat(change).replace(tzinfo=UTC), on)
    assert hours_to_tag(wanted) == f"UTC {text}"


def test_always_on_hours_do_not_change_after_the_last_holiday() -> None:
    wanted = Hours.model_validate({"timezone": "UTC", "on": ("daily 00:00-24:00",), "holidays": ("2026-12-25",)})
    assert next_change(wanted, datetime(2026, 12, 26, tzinfo=UTC)) is None


def test_tags_are_compact() -> None:
    wanted = hours("America/Chicago", "mon-fri 08:00-19:00", "sat 10:00-14:00", "daily 23:00-24:00")
    assert hours_to_tag(wanted) == "America/Chicago mon-fri 08:00-19:00;sat 10:00-14:00;daily 23:00-24:00"
    assert hours_to_tag(hours("UTC", "fri-mon 08:00-19:00")) == "UTC mon,fri-sun 08:00-19:00"


def test_overlong_hours_have_no_tag() -> None:
    assert hours_to_tag(hours("UTC", *[f"{day} 0{hour}:00-0{hour}:30" for day in DAYS for hour in range(3)])) is None


@pytest.mark.parametrize(
    "text",
    ["", "UTC", "UTC ", "Mars/Base mon 08:00-09:00", "UTC mon 8-9", "UTC mon 08:00-09:00;", "../UTC x", "U " * 300],
)
def test_invalid_tag_has_no_hours(text: str) -> None:
    assert hours_from_tag(text) is None
