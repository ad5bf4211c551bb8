"""The list of prices that comes with the program, for when the service of prices does not answer.

List prices for Linux in US dollars an hour, as the Retail Prices service gave them in the month that the file is named
for. It has no prices of spot machines: those change from day to day.
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
    """Prices by size and region."""
    rows = csv.DictReader(read_template(FILE).splitlines())
    return Prices({(row["size"], row["region"]): Rate(float(row["usdPerHour"])) for row in rows})
