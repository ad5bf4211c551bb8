"""How often: what both kinds of calendar are told comes round evenly, the whole day long."""

import pytest

from gpuinfra.scheduling.interval import DAY, EVEN, Interval, nearest


def values(field: str, size: int) -> set[int]:
    """What a field of a crontab stands for, by crontab(5)."""
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
def test_cron_comes_round_evenly_over_midnight(minutes: int, first: int) -> None:
    runs = minutes_of_day(Interval(minutes).cron(first))
    following = [*runs[1:], runs[0] + DAY]
    assert {after - before for before, after in zip(runs, following, strict=True)} == {minutes}
    assert runs[0] == first % minutes


def test_what_is_even() -> None:
    assert EVEN[0] == 1
    assert EVEN[-1] == DAY
    for minutes in range(1, DAY + 1):
        divides = DAY % minutes == 0 and (60 % minutes == 0 or minutes % 60 == 0)
        assert (minutes in EVEN) == divides


@pytest.mark.parametrize("minutes", [0, -15, 7, 45, 90, 5 * 60, 2 * DAY])
def test_what_is_not_even_is_none(minutes: int) -> None:
    with pytest.raises(ValueError, match=str(minutes)):
        Interval(minutes)


@pytest.mark.parametrize(("minutes", "near"), [(7, "6m"), (45, "30m"), (50, "1h"), (90, "1h"), (100_000, "1d")])
def test_the_nearest(minutes: int, near: str) -> None:
    assert str(nearest(minutes)) == near


@pytest.mark.parametrize(
    ("minutes", "calendar"),
    [
        (15, "*-*-* *:0/15:00"),
        (60, "*-*-* *:00:00"),
        (120, "*-*-* 0/2:00:00"),
        (DAY, "*-*-* 00:00:00"),
    ],
)
def test_calendars_of_systemd(minutes: int, calendar: str) -> None:
    # That systemd reads all of them so is tested with systemd itself.
    assert Interval(minutes).calendar() == calendar
