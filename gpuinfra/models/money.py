"""Amounts of money: `5 USD`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated

from pydantic import PlainSerializer, WithJsonSchema

from gpuinfra.diagnostics import Code
from gpuinfra.models.base import parsed, rejection, whole

# More than zero, less than a million, cents at the finest. Dollars alone: list prices are in them.
MONEY = r"(?!0+(?:\.0+)? )(?:0|[1-9][0-9]{0,5})(?:\.[0-9]{1,2})? USD"


@dataclass(frozen=True, slots=True)
class Money:
    """An amount in US dollars."""

    dollars: Decimal

    def __str__(self) -> str:
        return f"{self.dollars.normalize():f} USD"


def parse_money(text: str) -> Money:
    """`5 USD` or `0.50 USD`."""
    if not re.fullmatch(MONEY, text):
        raise rejection(
            Code.BAD_MONEY,
            "invalid amount of money",
            "expected an amount from 0.01 to 999999.99 and `USD`",
            "for example `5 USD` or `0.50 USD`",
        )
    return Money(Decimal(text.removesuffix(" USD")))


Amount = Annotated[
    Money,
    parsed(parse_money),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": whole(MONEY)}),
]
