"""Office hours and holidays: `mon-fri 08:00-19:00` in a named time zone."""

import re
from dataclasses import dataclass
from datetime import date, timedelta
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, GetJsonSchemaHandler, PlainSerializer, WithJsonSchema
from pydantic_core import CoreSchema

from gpuinfra.diagnostics import Code, did_you_mean
from gpuinfra.models.base import Model, checked, parsed, rejection, whole

MAX_DAYS = 3660
"""Ten years."""

# JSON Schema has no other way to check dates.
_LONG_MONTH = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_SHORT_MONTH = "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_FEBRUARY = "02-(?:0[1-9]|1[0-9]|2[0-8])"
_LEAP_DAY = "20(?:[02468][048]|[13579][26])-02-29"
DATE = f"(?:20[0-9]{{2}}-(?:{_LONG_MONTH}|{_SHORT_MONTH}|{_FEBRUARY})|{_LEAP_DAY})"
TEXT_PATH = r"(?![/~])(?!(?:[^\n]*/)?\.\.(?:/|$))[^\\\x00-\x1f]+\.txt"

_EXAMPLES = "for example `2026-12-25`, or `2026-12-24..2026-12-31` in a file"


def parse_days(text: str) -> tuple[date, ...]:
    """Return the days of a line: `2026-12-25`, or `2026-12-24..2026-12-31` for a range."""
    first, dots, last = text.partition("..")
    start, end = parse_date(first), parse_date(last if dots else first)
    if end < start:
        raise rejection(Code.BAD_DATE, "invalid date", "the end is before the start", _EXAMPLES)
    if (end - start).days > MAX_DAYS:
        raise rejection(Code.BAD_DATE, "invalid date", f"more than {MAX_DAYS} days", _EXAMPLES)
    return tuple(start + timedelta(days=number) for number in range((end - start).days + 1))


def parse_date(text: str) -> date:
    """Return the date of text such as `2026-12-25`."""
    if not re.fullmatch(DATE, text):
        label = "this day does not exist" if re.fullmatch("20[0-9]{2}-[0-9]{2}-[0-9]{2}", text) else _expected(text)
        raise rejection(Code.BAD_DATE, "invalid date", label, _EXAMPLES)
    return date.fromisoformat(text)


def _expected(text: str) -> str:
    return "expected one date" if ".." in text else "expected year, month and day, from 2000 to 2099"


def is_text_path(path: str) -> bool:
    """Return whether this is the path of a text file in the spec's folder, or below."""
    return re.fullmatch(TEXT_PATH, path) is not None


def _dates(value: object) -> object:
    """Reject text: the loader has already replaced the path of a file with its dates."""
    if not isinstance(value, str):
        return value
    if is_text_path(value):
        raise rejection(Code.BAD_DATE, "invalid date", "expected dates, found the path of a file", _EXAMPLES)
    label = "expected the path of a `.txt` file in the spec's folder, or a list of dates"
    raise rejection(Code.BAD_PATH, "invalid path", label, "for example `holidays.txt`")


def _in_order(days: tuple[date, ...]) -> tuple[date, ...]:
    if len(days) > MAX_DAYS:
        raise rejection(Code.OUT_OF_RANGE, "value out of range", f"at most {MAX_DAYS} days")
    return tuple(sorted(set(days)))


Holidays = Annotated[
    tuple[Annotated[date, parsed(parse_date), PlainSerializer(date.isoformat)], ...],
    Field(min_length=1),
    BeforeValidator(_dates),
    AfterValidator(_in_order),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": whole(TEXT_PATH)},
                {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MAX_DAYS,
                    "items": {"type": "string", "pattern": whole(DATE)},
                },
            ]
        }
    ),
]


DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_DAY = f"(?:{'|'.join(DAYS)})"
_DAYS = f"(?:daily|{_DAY}(?:-{_DAY})?(?:,{_DAY}(?:-{_DAY})?)*)"
_START = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_RANGE = f"{_START}-(?:{_START}|24:00)"
# A range that ends where it starts is ambiguous (empty or a whole day); the look-ahead refuses it.
WINDOW = rf"(?!.*([0-9]{{2}}:[0-9]{{2}})-\1){_DAYS} {_RANGE}(?:,{_RANGE})*"


@dataclass(frozen=True, slots=True)
class Window:
    """Ranges of minutes since midnight, on some days. An end before its start is on the next day."""

    days: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        days = ",".join(DAYS[day] for day in self.days) if len(self.days) < 7 else "daily"
        return f"{days} {','.join(f'{_clock(start)}-{_clock(end)}' for start, end in self.ranges)}"


def parse_window(text: str) -> Window:
    """Return `mon-fri 08:00-12:00,13:00-19:00` as a Window. Monday is 0."""
    if not re.fullmatch(WINDOW, text):
        raise rejection(Code.BAD_HOURS, "invalid hours", _broken_rule(text), 'for example "mon-fri 08:00-19:00"')
    days, ranges = text.split(" ")
    return Window(_days(days), tuple(_range(part) for part in ranges.split(",")))


def _broken_rule(text: str) -> str:
    days, _, ranges = text.partition(" ")
    if not re.fullmatch(_DAYS, days):
        return "expected days first: `daily`, or days such as `mon-fri` or `sat,sun`"
    if re.search(r"([0-9]{2}:[0-9]{2})-\1", ranges):
        return "the range ends where it starts; a whole day is `00:00-24:00`"
    return "expected 24-hour times after the days: `08:00-19:00`, or several with commas"


def _days(text: str) -> tuple[int, ...]:
    if text == "daily":
        return tuple(range(7))
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = DAYS.index(first), DAYS.index(last or first)
        # `fri-mon` spans the end of the week.
        found.update((start + step) % 7 for step in range((end - start) % 7 + 1))
    return tuple(sorted(found))


def _range(text: str) -> tuple[int, int]:
    start, end = (int(clock[:2]) * 60 + int(clock[3:]) for clock in text.split("-"))
    return start, end


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


@cache
def time_zones() -> tuple[str, ...]:
    """Return the names in the IANA database that is installed with gpuinfra."""
    return tuple(sorted(files("tzdata").joinpath("zones").read_text("utf-8").split()))


def check_time_zone(name: str) -> None:
    """Reject names that are not in the IANA database."""
    if name not in time_zones():
        raise rejection(
            Code.UNKNOWN_TIME_ZONE,
            "unknown time zone",
            "not in the IANA time zone database",
            did_you_mean(name, time_zones()) or "for example `America/Chicago` or `UTC`",
        )


class _ListZones:
    """Lists the time zones in the JSON Schema, and reads them only then."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"type": "string", "enum": list(time_zones())}


def _one_or_several(value: object) -> object:
    return (value,) if isinstance(value, str) else value


_WINDOW_SCHEMA = {"type": "string", "pattern": whole(WINDOW)}

TimeZone = Annotated[str, checked(check_time_zone), _ListZones()]
Windows = Annotated[
    tuple[Annotated[Window, parsed(parse_window), PlainSerializer(str)], ...],
    Field(min_length=1),
    BeforeValidator(_one_or_several),
    WithJsonSchema({"anyOf": [_WINDOW_SCHEMA, {"type": "array", "minItems": 1, "items": _WINDOW_SCHEMA}]}),
]


class Hours(Model):
    """The hours in which the machine may be on. Outside, only a lease keeps it on."""

    timezone: TimeZone = Field(description="An IANA time zone, such as America/Chicago.", examples=["America/Chicago"])
    on: Windows = Field(
        description='Days and times, such as "mon-fri 08:00-19:00"; several ranges with commas, or a list. '
        "A range may span midnight.",
        examples=["mon-fri 08:00-19:00"],
    )
    holidays: Holidays | None = Field(
        default=None,
        description="Days on which no range starts: a list of dates, or a text file in the spec's folder "
        "with one date, or two dates joined by .., per line.",
        examples=["holidays.txt"],
    )
