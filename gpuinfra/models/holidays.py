"""Days on which hours do not open: dates, or a text file that has them."""

from __future__ import annotations

import re
from datetime import date, timedelta
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.base import parsed, rejection, whole

MOST_DAYS = 3660
"""Ten years of nothing else."""

# JSON Schema has no other way to know which days there are.
_LONG_MONTH = "(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
_SHORT_MONTH = "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
_FEBRUARY = "02-(?:0[1-9]|1[0-9]|2[0-8])"
_LEAP_DAY = "20(?:[02468][048]|[13579][26])-02-29"
DATE = f"(?:20[0-9]{{2}}-(?:{_LONG_MONTH}|{_SHORT_MONTH}|{_FEBRUARY})|{_LEAP_DAY})"
TEXT_PATH = r"(?![/~])(?!(?:[^\n]*/)?\.\.(?:/|$))[^\\\x00-\x1f]+\.txt"

_EXAMPLES = "for example `2026-12-25`, or `2026-12-24..2026-12-31` in a file"


def parse_days(text: str) -> tuple[date, ...]:
    """A line of a file: `2026-12-25`, or `2026-12-24..2026-12-31` for all from the first to the last."""
    first, dots, last = text.partition("..")
    start, end = parse_date(first), parse_date(last if dots else first)
    if end < start:
        raise rejection(Code.BAD_DATE, "invalid date", "it ends before it begins", _EXAMPLES)
    if (end - start).days > MOST_DAYS:
        raise rejection(Code.BAD_DATE, "invalid date", f"more than {MOST_DAYS} days", _EXAMPLES)
    return tuple(start + timedelta(days=number) for number in range((end - start).days + 1))


def parse_date(text: str) -> date:
    """`2026-12-25`."""
    if not re.fullmatch(DATE, text):
        label = "there is no such day" if re.fullmatch("20[0-9]{2}-[0-9]{2}-[0-9]{2}", text) else _expected(text)
        raise rejection(Code.BAD_DATE, "invalid date", label, _EXAMPLES)
    return date.fromisoformat(text)


def _expected(text: str) -> str:
    return "expected one date" if ".." in text else "expected a date of this century as year, month and day"


def is_text_path(path: str) -> bool:
    """Whether it is the path of a text file in the spec's own folder, or below."""
    return re.fullmatch(TEXT_PATH, path) is not None


def _dates(value: object) -> object:
    """A path has to be read where it is known relative to what; the loader has done so."""
    if not isinstance(value, str):
        return value
    if is_text_path(value):
        raise rejection(Code.BAD_DATE, "invalid date", "expected dates, and this is the path of a file", _EXAMPLES)
    label = "expected the path of a `.txt` file in the spec's folder, or a list of dates"
    raise rejection(Code.BAD_PATH, "invalid path", label, "for example `holidays.txt`")


def _in_order(days: tuple[date, ...]) -> tuple[date, ...]:
    if len(days) > MOST_DAYS:
        raise rejection(Code.OUT_OF_RANGE, "value out of range", f"at most {MOST_DAYS} days")
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
                    "maxItems": MOST_DAYS,
                    "items": {"type": "string", "pattern": whole(DATE)},
                },
            ]
        }
    ),
]
