"""The list prices shipped with the program, in US dollars.

They are the prices of VMs if the Retail Prices API does not answer, and always those of disks and public IPs.
"""

import csv
from functools import cache

from gpuinfra.models.offer import Rate
from gpuinfra.provision.market.port import Prices
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.templates import read_template

# Linux VMs per hour, as the API returned them in this month. Spot prices are missing because they change daily.
DATE = "2026-06"
FILE = f"prices-{DATE}.csv"

# Disks and public IPs in East US, from Azure's price pages in late 2025. Other regions differ slightly.
# A disk is billed as the next larger of these sizes, in GiB. The prices are per month.
_SIZES = (32, 64, 128, 256, 512, 1024, 2048, 4096)
_PRICES: dict[str, tuple[float, ...]] = {
    "Standard": (1.54, 3.01, 5.89, 11.33, 21.76, 40.96, 77.83, 143.36),
    "StandardSSD": (2.40, 4.80, 9.60, 19.20, 38.40, 76.80, 153.60, 307.20),
    "Premium": (5.28, 10.21, 19.71, 38.02, 73.22, 135.17, 259.05, 495.57),
}
_ZONE_REDUNDANT = 1.5
_ADDRESS_PER_HOUR = 0.005
_HOURS_A_MONTH = 730


@cache
def shipped_prices() -> Prices:
    """Return the shipped prices by size and region."""
    rows = csv.DictReader(read_template(FILE).splitlines())
    return Prices({(row["size"], row["region"]): Rate(float(row["usdPerHour"])) for row in rows})


def disk_per_month(size_gib: int, sku: str) -> float | None:
    """Return a disk's price per month, or None for an unknown kind."""
    family, _, redundancy = sku.partition("_")
    for size, price in zip(_SIZES, _PRICES.get(family, ()), strict=False):
        if size_gib <= size:
            return round(price * (_ZONE_REDUNDANT if redundancy == "ZRS" else 1), 2)
    return None


def disk_price(disk: ObservedResource) -> float | None:
    """Return the price per month of a disk in Azure, or None for an unknown kind."""
    return disk_per_month(int(disk.properties.get("diskSizeGB") or 0), disk.sku)


def address_per_month() -> float:
    """Return the price of a static public IP per month."""
    return round(_ADDRESS_PER_HOUR * _HOURS_A_MONTH, 2)
