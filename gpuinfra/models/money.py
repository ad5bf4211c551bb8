"""Amounts of money: `5 USD` or `$5`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from pydantic import PlainSerializer, WithJsonSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.base import parsed, rejection, whole

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
