"""What the types of spec fields share: their base class, checks, durations and amounts of money."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, PlainSerializer, WithJsonSchema
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticCustomError

from gpuinfra.diagnostics import Code, did_you_mean, listed


class Model(BaseModel):
    """A frozen, strict model with camelCase keys: numbers are not text, text is not a boolean, unknown keys fail."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        hide_input_in_errors=True,  # a pasted private key must not travel in an exception
    )


def rejection(code: Code, summary: str, label: str = "", help: str | None = None) -> PydanticCustomError:  # noqa: A002 the diagnostic's own word
    """Return the error that a field's check raises. `parse.spec` turns it into a located diagnostic."""
    # The summary goes into the context as well: pydantic would format it as a template.
    return PydanticCustomError(code.value, "{summary}", {"summary": summary, "label": label, "help": help})


def require_text(value: object) -> str:
    """Return `value` if it is text, else raise pydantic's own error for a wrong type."""
    if not isinstance(value, str):
        raise PydanticCustomError("string_type", "text expected")
    return value


def parsed(parse: Callable[[str], Any]) -> BeforeValidator:
    """Return a validator that parses text into a value."""

    def validate(value: object) -> Any:
        return parse(require_text(value))

    return BeforeValidator(validate)


def one_of(*choices: str) -> BeforeValidator:
    """Return a validator for a fixed set of words. Its error suggests the nearest word."""

    def validate(value: object) -> str:
        if require_text(value) in choices:
            return str(value)
        raise rejection(
            Code.UNKNOWN_VALUE,
            "unknown value",
            f"expected {listed(choices)}",
            did_you_mean(str(value), choices),
        )

    return BeforeValidator(validate)


def check_first(check: Callable[[str], None]) -> BeforeValidator:
    """Return a validator that checks text before all other validators."""

    def validate(value: object) -> object:
        if isinstance(value, str):
            check(value)
        return value

    return BeforeValidator(validate)


def checked(check: Callable[[str], None]) -> AfterValidator:
    """Return a validator that keeps text unchanged, or raises what `check` raises."""

    def validate(value: str) -> str:
        check(value)
        return value

    return AfterValidator(validate)


def whole(pattern: str) -> str:
    """Return `pattern` anchored to the entire text, in the syntax that Python and JSON Schema (ECMA-262) share.

    Python's `$` also matches before a final newline; the look-ahead prevents that.
    """
    return f"^(?:{pattern})(?!\\n)$"


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
SHORT = timedelta(hours=23)
"""The longest time after which Azure's daily schedule, which has no date, is sure to stop a machine."""
_SHORT = "|".join([f"{numbers_up_to(23)}{_H}", f"{numbers_up_to(22)}{_H}{_MINUTES}", f"{numbers_up_to(23 * 60)}{_M}"])


def parse_short_duration(text: str) -> timedelta:
    """Return a duration from one minute to 23 hours."""
    found = parse_duration(text)
    if found > SHORT:
        label = f"expected `1m` to `{format_duration(SHORT)}`"
        raise rejection(Code.OUT_OF_RANGE, "value out of range", label)
    return found


ShortDuration = Annotated[
    timedelta,
    parsed(parse_short_duration),
    PlainSerializer(format_duration),
    WithJsonSchema({"type": "string", "pattern": whole(_SHORT)}),
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
