"""When a machine may be on: `mon-fri 08:00-19:00` in a named time zone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, GetJsonSchemaHandler, PlainSerializer, WithJsonSchema
from pydantic_core import CoreSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.base import Model, checked, parsed, rejection, whole
from gpuinfra.models.holidays import Holidays
from gpuinfra.suggest import did_you_mean

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")

_DAY = f"(?:{'|'.join(DAYS)})"
_DAYS = f"(?:daily|{_DAY}(?:-{_DAY})?(?:,{_DAY}(?:-{_DAY})?)*)"
_START = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_RANGE = f"{_START}-(?:{_START}|24:00)"
# A range that ends where it starts could mean nothing or a whole day; the look-ahead refuses it.
WINDOW = rf"(?!.*([0-9]{{2}}:[0-9]{{2}})-\1){_DAYS} {_RANGE}(?:,{_RANGE})*"


@dataclass(frozen=True, slots=True)
class Window:
    """Ranges of minutes since midnight that start on each of the days; an end before its start is the next day's."""

    days: tuple[int, ...]
    ranges: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        days = ",".join(DAYS[day] for day in self.days) if len(self.days) < 7 else "daily"
        return f"{days} {','.join(f'{_clock(start)}-{_clock(end)}' for start, end in self.ranges)}"


def parse_window(text: str) -> Window:
    """`mon-fri 08:00-12:00,13:00-19:00` as a Window; days are counted from Monday, 0."""
    if not re.fullmatch(WINDOW, text):
        raise rejection(Code.BAD_HOURS, "invalid hours", _broken_rule(text), 'for example "mon-fri 08:00-19:00"')
    days, ranges = text.split(" ")
    return Window(_days(days), tuple(_range(part) for part in ranges.split(",")))


def _broken_rule(text: str) -> str:
    days, _, ranges = text.partition(" ")
    if not re.fullmatch(_DAYS, days):
        return "expected days first: `daily`, or some of `mon` to `sun` such as `mon-fri` or `sat,sun`"
    if re.search(r"([0-9]{2}:[0-9]{2})-\1", ranges):
        return "this range ends where it starts; a whole day is `00:00-24:00`"
    return "expected times after the days: `08:00-19:00`, several with a comma, 24-hour clock"


def _days(text: str) -> tuple[int, ...]:
    if text == "daily":
        return tuple(range(7))
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, end = DAYS.index(first), DAYS.index(last or first)
        # `fri-mon` goes round the end of the week.
        found.update((start + step) % 7 for step in range((end - start) % 7 + 1))
    return tuple(sorted(found))


def _range(text: str) -> tuple[int, int]:
    start, end = (int(clock[:2]) * 60 + int(clock[3:]) for clock in text.split("-"))
    return start, end


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02}:{minutes % 60:02}"


@cache
def time_zones() -> tuple[str, ...]:
    """The names in the IANA database that is installed with us, so that every machine agrees on them."""
    return tuple(sorted(files("tzdata").joinpath("zones").read_text("utf-8").split()))


def check_time_zone(name: str) -> None:
    """A name of the IANA database, in its own spelling."""
    if name not in time_zones():
        raise rejection(
            Code.UNKNOWN_TIME_ZONE,
            "unknown time zone",
            "not in the IANA time zone database",
            did_you_mean(name, time_zones()) or "for example `America/Chicago` or `UTC`",
        )


class _ListZones:
    """Lists the zones in the JSON Schema only when one is asked for: reading them takes time."""

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
    """Outside these hours the machine is off unless a lease holds it."""

    timezone: TimeZone = Field(description="An IANA time zone, such as America/Chicago.", examples=["America/Chicago"])
    on: Windows = Field(
        description='Days and times, such as "mon-fri 08:00-19:00"; several ranges with commas, or a list. '
        "A range may go over midnight.",
        examples=["mon-fri 08:00-19:00"],
    )
    holidays: Holidays | None = Field(
        default=None,
        description="A text file in the spec's folder with the days on which no range begins: a date a line, or two "
        "with .. between them. Or a list of dates.",
        examples=["holidays.txt"],
    )
