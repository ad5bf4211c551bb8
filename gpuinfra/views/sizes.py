"""Sizes as a table, by size or by region."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpuinfra.views import json_output
from gpuinfra.views.terminal import UNKNOWN, columns, messages, per_hour, results, width_of

if TYPE_CHECKING:
    from gpuinfra.models.sizes import PricedOffer, Quota, SizeOffers

# Marks a region in which this subscription cannot use the size.
MARK = "*"
MIN_WIDTH = 20
# Memory, vCPUs, spot price, GPUs, GPU: left out first if the table does not fit.
LEAST_OF_SIZES = (4, 3, 6, 2, 1)
# Memory, vCPUs, zones, GPUs, GPU, quota of spot machines and of the region, prices.
LEAST_OF_PLACES = (4, 3, 6, 2, 1, 11, 10, 8, 7)


def show(sizes: Sequence[SizeOffers], *, by_region: bool, with_quota: bool, simulated: bool, json: bool) -> None:
    """Print one line per size, or per size and region."""
    if json:
        json_output.show({"simulated": simulated, "sizes": [size.as_json() for size in sizes]})
        return
    if not sizes:
        messages().print("no NC size is available there")
        return
    if by_region:
        _show_places(sizes, with_quota=with_quota)
    else:
        _show_sizes(sizes)
    if any(place.offer.restriction for size in sizes for place in size.places):
        messages().print(f"{MARK} not available to this subscription")
    if simulated:
        messages().print("embedded Azure: offers, prices and quota are simulated")


def _show_sizes(sizes: Sequence[SizeOffers]) -> None:
    console = results()
    rows = [("SIZE", "GPU", "GPUS", "VCPUS", "MEMORY", "FROM", "SPOT FROM")]
    rows += [(*_machine(size), per_hour(_least(size, spot=False)), per_hour(_least(size, spot=True))) for size in sizes]
    width = width_of(console)
    left = None if width is None else width - MIN_WIDTH - 3
    lines = columns(rows, right={2, 3, 4, 5, 6}, least=LEAST_OF_SIZES, width=left)
    regions = ["REGIONS", *(", ".join(_region(place) for place in size.places) for size in sizes)]
    indent = len(lines[0]) + 2
    for line, text in zip(lines, regions, strict=True):
        # Wrap the list in its column on a terminal; elsewhere keep one line.
        room = len(text) + 1 if width is None else max(MIN_WIDTH, width - indent - 1)
        first, *rest = textwrap.wrap(text, room, break_long_words=False)
        console.print(f"{line}  {first}")
        for part in rest:
            console.print(" " * indent + part)


def _show_places(sizes: Sequence[SizeOffers], *, with_quota: bool) -> None:
    header = ["SIZE", "GPU", "GPUS", "VCPUS", "MEMORY", "REGION", "ZONES", "PRICE", "SPOT"]
    rows = [header + (["QUOTA LEFT", "REGION LEFT", "SPOT LEFT"] if with_quota else [])]
    rows += [
        [
            *_machine(size),
            _region(place),
            _zones(place),
            per_hour(place.rate.regular),
            per_hour(place.rate.spot),
            *(_quotas(place) if with_quota else ()),
        ]
        for size in sizes
        for place in size.places
    ]
    console = results()
    right = {2, 3, 4, 7, 8, 9, 10, 11}
    least = [each for each in LEAST_OF_PLACES if each < len(header) or with_quota]
    for line in columns(rows, right, least=least, width=width_of(console)):
        console.print(line)


def _machine(size: SizeOffers) -> tuple[str, str, str, str, str]:
    return size.size.name, size.size.gpu_model, _count(size.size.gpus), str(size.vcpus), f"{size.memory_gib:g} GiB"


def _count(gpus: float) -> str:
    return f"1/{round(1 / gpus)}" if gpus < 1 else f"{gpus:g}"


def _least(size: SizeOffers, *, spot: bool) -> float | None:
    prices = (place.rate.spot if spot else place.rate.regular for place in size.places)
    return min((price for price in prices if price is not None), default=None)


def _region(place: PricedOffer) -> str:
    return place.offer.region + (MARK if place.offer.restriction else "")


def _zones(place: PricedOffer) -> str:
    offer = place.offer
    zones = (zone + (MARK if zone in offer.restricted_zones else "") for zone in offer.zones)
    return ",".join(zones) or UNKNOWN


def _quotas(place: PricedOffer) -> Iterator[str]:
    found = place.quotas
    for quota in (found.family, found.region, found.spot) if found else (None, None, None):
        yield _quota(quota)


def _quota(quota: Quota | None) -> str:
    return f"{quota.left} of {quota.limit}" if quota else UNKNOWN
