"""Intervals: the runs in both calendar formats are evenly spaced over the whole day."""

import pytest

from gpuinfra.scheduling.schedule import DAY, EVEN, Interval, nearest_interval


def values(field: str, size: int) -> set[int]:
    """Return the values of a crontab field, as described in crontab(5)."""
    found: set[int] = set()
    for part in field.split(","):
        numbers, _, step = part.partition("/")
        first, _, last = numbers.partition("-")
        low, high = (0, size - 1) if numbers == "*" else (int(first), int(last or first))
        found |= set(range(low, high + 1, int(step or 1)))
    return found


def minutes_of_day(cron: str) -> list[int]:
    minute, hour, *rest = cron.split(" ")
    assert rest == ["*", "*", "*"]
    return sorted(h * 60 + m for h in values(hour, 24) for m in values(minute, 60))


@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize("minutes", EVEN)
def test_cron_runs_are_evenly_spaced_over_midnight(minutes: int, first: int) -> None:
    runs = minutes_of_day(Interval(minutes).cron(first))
    following = [*runs[1:], runs[0] + DAY]
    assert {after - before for before, after in zip(runs, following, strict=True)} == {minutes}
    assert runs[0] == first % minutes


def test_even_intervals_divide_the_day() -> None:
    assert EVEN[0] == 1
    assert EVEN[-1] == DAY
    for minutes in range(1, DAY + 1):
        divides = DAY % minutes == 0 and (60 % minutes == 0 or minutes % 60 == 0)
        assert (minutes in EVEN) == divides


@pytest.mark.parametrize("minutes", [0, -15, 7, 45, 90, 5 * 60, 2 * DAY])
def test_uneven_interval_is_refused(minutes: int) -> None:
    with pytest.raises(ValueError, match=str(minutes)):
        Interval(minutes)


@pytest.mark.parametrize(("minutes", "near"), [(7, "6m"), (45, "30m"), (50, "1h"), (90, "1h"), (100_000, "1d")])
def test_nearest_even_interval_is_suggested(minutes: int, near: str) -> None:
    assert str(nearest_interval(minutes)) == near


@pytest.mark.parametrize(
    ("minutes", "calendar"),
    [
        (15, "*-*-* *:0/15:00"),
        (60, "*-*-* *:00:00"),
        (120, "*-*-* 0/2:00:00"),
        (DAY, "*-*-* 00:00:00"),
    ],
)
def test_interval_becomes_a_systemd_calendar(minutes: int, calendar: str) -> None:
    # Tests with the real systemd check how it reads them.
    assert Interval(minutes).calendar() == calendar
