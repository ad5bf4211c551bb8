"""Evaluate a spec's hours: whether a machine may be on at a time, and when that changes.

Local time applies, including daylight saving: a machine may be on while the local time in its time zone is inside a
window. A local time that a clock change skips never occurs, and a repeated one counts both times. A range that begins
on a holiday does not open, and neither does its part after midnight.
"""

from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from gpuinfra.models.hours import DAYS, Hours, Window

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
