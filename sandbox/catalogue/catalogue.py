"""Regions, sizes and prices, from `nc.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class Region:
    """A region; `price_location` is its name in the Retail Prices service."""

    name: str
    display_name: str
    price_location: str
    zones: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Gpu:
    """The GPUs of a size. `product` is the name in `nvidia-smi`; a count below 1 is a part of one GPU."""

    model: str
    product: str
    count: float
    memory_mib: int
    """Of each GPU, or of the part."""

    @property
    def devices(self) -> int:
        """How many devices the guest sees: part of a GPU is one device."""
        return max(1, int(self.count))


@dataclass(frozen=True, slots=True)
class Throughput:
    """What a VM's disks can do per second, and the size of its cache."""

    cached_operations: int
    cached_bytes: int
    cache_size_bytes: int
    uncached_operations: int
    uncached_bytes: int


@dataclass(frozen=True, slots=True)
class Size:
    """A VM size."""

    name: str
    family: str
    """The name of its quota, as Azure spells it."""
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
    """The tier of a managed disk, and its largest size."""

    sku: str
    tier: str
    size_gib: int


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Everything that is offered. Lookups ignore case, and for regions spaces too."""

    region_table: Mapping[str, Region]
    size_table: Mapping[str, Size]
    price_table: Mapping[tuple[str, str], float]
    series_table: Mapping[str, Series]
    quotas: tuple[Quota, ...]
    disk_tiers: tuple[DiskTier, ...]
    spot_price_factor: float
    windows_price_per_vcpu: float

    def regions(self) -> tuple[Region, ...]:
        return tuple(self.region_table.values())

    def region(self, name: str) -> Region | None:
        """Return the region called `southcentralus` or `South Central US`."""
        return self.region_table.get(region_key(name))

    def sizes(self) -> tuple[Size, ...]:
        """Return every offered size, in each family from the smallest to the largest."""
        return tuple(self.size_table.values())

    def size(self, name: str) -> Size | None:
        """Return the size of this name, or None if it is unknown or retired."""
        return self.size_table.get(name.casefold())

    def offered(self, size: str, region: str) -> bool:
        return (size.casefold(), region_key(region)) in self.price_table

    def price(self, size: str, region: str, spot: bool = False) -> float | None:
        """Return USD per hour on Linux, or None if the size is not offered, or not as Spot."""
        found, listed = self.size(size), self.price_table.get((size.casefold(), region_key(region)))
        if found is None or listed is None or (spot and not found.spot):
            return None
        return round(listed * self.spot_price_factor, 6) if spot else listed

    def zones(self, region: str) -> tuple[str, ...]:
        found = self.region(region)
        return found.zones if found else ()

    def disk_tier(self, sku: str, size_gib: int) -> DiskTier | None:
        """Return the smallest tier that holds this size: Azure bills a disk as that tier."""
        fitting = [
            tier for tier in self.disk_tiers if tier.sku.casefold() == sku.casefold() and tier.size_gib >= size_gib
        ]
        return min(fitting, key=lambda tier: tier.size_gib, default=None)


def region_key(name: str) -> str:
    """Return what all spellings of a region's name have in common."""
    return name.replace(" ", "").casefold()


def load_catalogue() -> Catalogue:
    """Read the catalogue that ships with the package. Callers keep the result."""
    data = json.loads(files("gpuinfra.sandbox.catalogue").joinpath("nc.json").read_text("utf-8"))
    products = {row["model"]: row["product"] for row in data["gpus"]}
    return Catalogue(
        region_table={row["name"]: _region(row) for row in data["regions"]},
        size_table={row["name"].casefold(): _size(row, products) for row in data["sizes"]},
        price_table={(size.casefold(), region): price for size, region, price in data["prices"]},
        series_table={row["family"]: _series(row) for row in data["series"]},
        quotas=tuple(Quota(row["name"], row["displayName"], row["limit"]) for row in data["quotas"]),
        disk_tiers=tuple(DiskTier(*row) for row in data["disks"]),
        spot_price_factor=data["spotPriceFactor"],
        windows_price_per_vcpu=data["windowsPricePerVcpu"],
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
