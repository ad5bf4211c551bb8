"""Regions, sizes and prices, from `nc.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Region:
    """A region; `price_location` is its other name, in the Retail Prices service."""

    name: str
    display_name: str
    price_location: str
    zones: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPUs of a size. `product` is what `nvidia-smi` calls one; a part of one is a count below 1."""

    model: str
    product: str
    count: float
    memory_mib: int
    """Of each of them, or of the part."""

    @property
    def devices(self) -> int:
        """How many the guest sees: a part of a GPU is a device as well."""
        return max(1, int(self.count))


@dataclass(frozen=True, slots=True)
class Throughput:
    """What disks of a machine can do in a second, and how large its cache is."""

    cached_operations: int
    cached_bytes: int
    cache_size_bytes: int
    uncached_operations: int
    uncached_bytes: int


@dataclass(frozen=True, slots=True)
class Size:
    """A size of virtual machine."""

    name: str
    family: str
    """The name of its quota, exactly as Azure spells it."""
    vcpus: int
    memory_gib: float
    gpu: Gpu | None
    temporary_disk_gib: int
    nvme_mib: int
    nics: int
    data_disks: int
    generations: tuple[str, ...]
    confidential: bool
    spot: bool
    accelerated_networking: bool
    throughput: Throughput


@dataclass(frozen=True, slots=True)
class Series:
    """How the Retail Prices service names the sizes of a family."""

    family: str
    product: str
    windows_product: str
    arm_names: bool
    """Whether a row is called `Standard_NC24ads_A100_v4`, and not `NC4as T4 v3`."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A limit that a subscription has in each region."""

    name: str
    display_name: str
    limit: int


@dataclass(frozen=True, slots=True)
class DiskTier:
    """A managed disk up to a size, at a price for a month."""

    sku: str
    tier: str
    size_gib: int
    price_per_month: float


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Everything on offer. Names are looked up regardless of case, those of regions regardless of spaces too."""

    region_table: Mapping[str, Region]
    size_table: Mapping[str, Size]
    price_table: Mapping[tuple[str, str], float]
    series_table: Mapping[str, Series]
    quotas: tuple[Quota, ...]
    disk_tiers: tuple[DiskTier, ...]
    retired: frozenset[str]
    spot_price_factor: float
    windows_price_per_vcpu: float
    public_address_price_per_month: float

    def regions(self) -> tuple[Region, ...]:
        """Every region."""
        return tuple(self.region_table.values())

    def region(self, name: str) -> Region | None:
        """The region called `southcentralus` or `South Central US`."""
        return self.region_table.get(region_key(name))

    def sizes(self) -> tuple[Size, ...]:
        """Every size that is offered somewhere, in each family from the least to the largest."""
        return tuple(self.size_table.values())

    def size(self, name: str) -> Size | None:
        """The size of this name, unless it is retired or unknown."""
        return self.size_table.get(name.casefold())

    def gpu(self, size: str) -> Gpu | None:
        """The GPUs of a size."""
        found = self.size(size)
        return found.gpu if found else None

    def is_retired(self, size: str) -> bool:
        """Whether Azure once had this size."""
        return size.casefold() in self.retired

    def offered(self, size: str, region: str) -> bool:
        """Whether a region has a size."""
        return (size.casefold(), region_key(region)) in self.price_table

    def price(self, size: str, region: str, spot: bool = False) -> float | None:
        """USD an hour on Linux; none where the size is not offered, or not as spot."""
        found, listed = self.size(size), self.price_table.get((size.casefold(), region_key(region)))
        if found is None or listed is None or (spot and not found.spot):
            return None
        return round(listed * self.spot_price_factor, 6) if spot else listed

    def zones(self, region: str) -> tuple[str, ...]:
        """The availability zones of a region."""
        found = self.region(region)
        return found.zones if found else ()

    def disk_tier(self, sku: str, size_gib: int) -> DiskTier | None:
        """The smallest tier that holds so much: Azure bills a disk as that tier."""
        fitting = [
            tier for tier in self.disk_tiers if tier.sku.casefold() == sku.casefold() and tier.size_gib >= size_gib
        ]
        return min(fitting, key=lambda tier: tier.size_gib, default=None)

    def disk_price(self, sku: str, size_gib: int) -> float | None:
        """USD a month for a disk."""
        tier = self.disk_tier(sku, size_gib)
        return tier.price_per_month if tier else None


def region_key(name: str) -> str:
    """What two spellings of a region have in common."""
    return name.replace(" ", "").casefold()


def load_catalogue() -> Catalogue:
    """Read the catalogue that is shipped with the package. Whoever needs it twice keeps it."""
    data = json.loads(files("gpuinfra.sandbox.catalogue").joinpath("nc.json").read_text("utf-8"))
    products = {row["model"]: row["product"] for row in data["gpus"]}
    return Catalogue(
        region_table={row["name"]: _region(row) for row in data["regions"]},
        size_table={row["name"].casefold(): _size(row, products) for row in data["sizes"]},
        price_table={(size.casefold(), region): price for size, region, price in data["prices"]},
        series_table={row["family"]: _series(row) for row in data["series"]},
        quotas=tuple(Quota(row["name"], row["displayName"], row["limit"]) for row in data["quotas"]),
        disk_tiers=tuple(DiskTier(*row) for row in data["disks"]),
        retired=frozenset(name.casefold() for name in data["retired"]),
        spot_price_factor=data["spotPriceFactor"],
        windows_price_per_vcpu=data["windowsPricePerVcpu"],
        public_address_price_per_month=data["publicAddressPricePerMonth"],
    )


def _region(row: Mapping[str, Any]) -> Region:
    return Region(row["name"], row["displayName"], row["priceLocation"], tuple(row["zones"]))


def _series(row: Mapping[str, Any]) -> Series:
    return Series(row["family"], row["product"], row["windowsProduct"], row["armNames"])


def _size(row: Mapping[str, Any], products: Mapping[str, str]) -> Size:
    model = row["gpu"]
    return Size(
        name=row["name"],
        family=row["family"],
        vcpus=row["vcpus"],
        memory_gib=row["memoryGiB"],
        gpu=Gpu(model, products[model], row["gpus"], row["gpuMemoryMiB"]) if model else None,
        temporary_disk_gib=row["temporaryDiskGiB"],
        nvme_mib=row["nvmeMiB"],
        nics=row["nics"],
        data_disks=row["dataDisks"],
        generations=tuple(row["generations"]),
        confidential=row["confidential"],
        spot=row["spot"],
        accelerated_networking=row["acceleratedNetworking"],
        throughput=Throughput(*row["throughput"]),
    )
