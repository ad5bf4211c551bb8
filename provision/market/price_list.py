"""The price list shipped with the program, used if the Retail Prices API does not answer.

It has list prices for Linux in US dollars per hour, as the API returned them in the month in the file name. It has no
spot prices, which change daily.
"""

from __future__ import annotations

import csv
from functools import cache

from gpuinfra.models.offer import Rate
from gpuinfra.provision.market.port import Prices
from gpuinfra.templates import read_template

DATE = "2026-06"
FILE = f"prices-{DATE}.csv"


@cache
def shipped_prices() -> Prices:
    """Return the shipped prices by size and region."""
    rows = csv.DictReader(read_template(FILE).splitlines())
    return Prices({(row["size"], row["region"]): Rate(float(row["usdPerHour"])) for row in rows})
