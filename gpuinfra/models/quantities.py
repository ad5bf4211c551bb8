"""Durations and amounts of money, as people write them: `20m`, `1h30m`, `4 hours`; `5 USD`, `$5`."""

import re
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Annotated

from pydantic import PlainSerializer, WithJsonSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.base import parsed, rejection, whole

MAX_DURATION = timedelta(days=30)


def numbers_up_to(largest: int) -> str:
    """Return a pattern for the numbers 1 to `largest` without leading zeros.

    JSON Schema has no other way to limit a number inside text.
    """
    digits = str(largest)
    shorter = [f"[1-9][0-9]{{{length - 1}}}" for length in range(1, len(digits))]
    same_length = [
        f"{digits[:place]}[{lowest}-{int(digit) - 1}][0-9]{{{len(digits) - place - 1}}}"
        for place, digit in enumerate(digits)
        if int(digit) > (lowest := 0 if place else 1)
    ]
    return f"(?:{'|'.join([*shorter, *same_length, digits])})"


_D, _H, _M = "(?:d| days?)", "(?:h| hours?)", "(?:m| min| minutes?)"
_HOURS, _MINUTES = f"(?: ?{numbers_up_to(23)}{_H})?", f"(?: ?{numbers_up_to(59)}{_M})?"
DURATION = "|".join(
    [
        f"{numbers_up_to(MAX_DURATION.days)}{_D}",
        f"{numbers_up_to(MAX_DURATION.days - 1)}{_D}{_HOURS}{_MINUTES}",
        f"{numbers_up_to(MAX_DURATION.days * 24)}{_H}",
        f"{numbers_up_to(MAX_DURATION.days * 24 - 1)}{_H}{_MINUTES}",
        f"{numbers_up_to(MAX_DURATION.days * 24 * 60)}{_M}",
    ]
)
_PARTS = re.compile(rf"(?! )(?:([0-9]+){_D})?(?: ?([0-9]+){_H})?(?: ?([0-9]+){_M})?")


def parse_duration(text: str) -> timedelta:
    """Return `1h30m` or `4 hours` as a timedelta, from one minute to thirty days."""
    parts = _PARTS.fullmatch(text)
    if not text or not parts:
        raise rejection(
            Code.BAD_DURATION,
            "invalid duration",
            "expected days, hours and minutes, in that order",
            "for example `20m`, `4 hours`, `1h30m` or `2d`",
        )
    if not re.fullmatch(DURATION, text):
        raise rejection(
            Code.OUT_OF_RANGE,
            "value out of range",
            f"expected `1m` to `{MAX_DURATION.days}d`, with at most 23 hours after days and 59 minutes after hours",
        )
    days, hours, minutes = (int(part or 0) for part in parts.groups())
    return timedelta(days=days, hours=hours, minutes=minutes)


def format_duration(duration: timedelta) -> str:
    """Return text that `parse_duration` accepts."""
    hours, minutes = divmod(int(duration.total_seconds()) // 60, 60)
    days, hours = divmod(hours, 24)
    return "".join(f"{n}{unit}" for n, unit in ((days, "d"), (hours, "h"), (minutes, "m")) if n)


Duration = Annotated[
    timedelta,
    parsed(parse_duration),
    PlainSerializer(format_duration),
    WithJsonSchema({"type": "string", "pattern": whole(DURATION)}),
]


# From one cent to less than a million, in dollars: list prices are in dollars.
_AMOUNT = r"(?:[1-9][0-9]{0,5}(?:\.[0-9]{1,2})?|0\.(?:0[1-9]|[1-9][0-9]?))"
MONEY = rf"\${_AMOUNT}|{_AMOUNT} USD"


@dataclass(frozen=True, slots=True)
class Money:
    """An amount in US dollars."""

    dollars: Decimal

    def __str__(self) -> str:
        return f"{self.dollars.normalize():f} USD"


def parse_money(text: str) -> Money:
    """Return the amount of text such as `5 USD`, `0.50 USD` or `$5`."""
    if not re.fullmatch(MONEY, text):
        raise rejection(
            Code.BAD_MONEY,
            "invalid amount of money",
            "expected US dollars, from 0.01 to 999999.99",
            "for example `5 USD` or `$0.50`",
        )
    return Money(Decimal(text.removeprefix("$").removesuffix(" USD")))


MoneyField = Annotated[
    Money,
    parsed(parse_money),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": whole(MONEY)}),
]
