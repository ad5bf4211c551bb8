"""Estimate what disk and public IP cost while a machine is off.

These are list prices for East US in US dollars from Azure's price pages in late 2025. Other regions differ slightly.
"""

from __future__ import annotations

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


def disk_per_month(size_gib: int, sku: str) -> float | None:
    """Return a disk's price per month, or None for an unknown kind."""
    family, _, redundancy = sku.partition("_")
    for size, price in zip(_SIZES, _PRICES.get(family, ()), strict=False):
        if size_gib <= size:
            return round(price * (_ZONE_REDUNDANT if redundancy == "ZRS" else 1), 2)
    return None


def address_per_month() -> float:
    """Return the price of a static public IP per month."""
    return round(_ADDRESS_PER_HOUR * _HOURS_A_MONTH, 2)
