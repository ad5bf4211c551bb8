"""Sizes and disk SKUs: `Microsoft.Compute/skus` and `locations/{location}/vmSizes`."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import Catalogue, DiskTier, Region, Size, region_key
from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.errors import invalid_parameter
from gpuinfra.sandbox.kernel.routes import SUBSCRIPTION, Service
from gpuinfra.sandbox.services.common import require_region, require_subscription

service = Service()

_COMPUTE = f"{SUBSCRIPTION}/providers/Microsoft.Compute"

OPERATING_SYSTEM_DISK_MIB = 1_047_552


def sku_items(
    catalogue: Catalogue, location_filter: str | None, restrictions: Mapping[tuple[str, str], str]
) -> list[dict[str, Any]]:
    """List every disk SKU and VM size, one item per region. `restrictions` gives (region, size) a reason code."""
    reasons = {(region_key(region), size.casefold()): code for (region, size), code in restrictions.items()}
    if location_filter is None:
        regions = catalogue.regions()
    else:
        found = catalogue.region(location_filter)
        regions = (found,) if found else ()
    items = [_disk_sku(tier, region) for region in regions for tier in catalogue.disk_tiers]
    items += [
        _vm_sku(size, region, reasons.get((region.name, size.name.casefold())))
        for region in regions
        for size in catalogue.sizes()
        if catalogue.offered(size.name, region.name)
    ]
    return items


def vm_sizes(catalogue: Catalogue, region: str) -> list[dict[str, Any]]:
    """List the sizes of one region in the older, shorter form."""
    return [
        {
            "name": size.name,
            "numberOfCores": size.vcpus,
            "osDiskSizeInMB": OPERATING_SYSTEM_DISK_MIB,
            "resourceDiskSizeInMB": size.temporary_disk_gib * 1024,
            "memoryInMB": int(size.memory_gib * 1024),
            "maxDataDiskCount": size.data_disks,
        }
        for size in catalogue.sizes()
        if catalogue.offered(size.name, region)
    ]


@service.route("GET", f"{_COMPUTE}/skus")
def _list_skus(call: Call) -> Answer:
    require_subscription(call)
    location = _filtered_location(call.query.get("$filter", ""))
    catalogue = call.cloud.catalogue
    restricted = {
        (region.name, str(fault.get("resource") or ""))
        for fault in call.cloud.faults.all()
        if fault["name"] == "restricted"
        for region in catalogue.regions()
        if not fault.get("region") or fault["region"].lower() == region.name
    }
    restrictions = {
        (region, size.name): "NotAvailableForSubscription"
        for region, name in restricted
        for size in catalogue.sizes()
        if not name or name.lower() == size.name.lower()
    }
    return Answer(200, {"value": sku_items(catalogue, location, restrictions)})


def _filtered_location(text: str) -> str | None:
    if not text:
        return None
    found = re.fullmatch(r"\s*location\s+eq\s+'([^']*)'\s*", text, re.IGNORECASE)
    if not found:
        raise invalid_parameter("$filter", f"The filter '{text}' is not supported: location eq '…' is.")
    return found.group(1)


@service.route("GET", f"{_COMPUTE}/locations/{{location}}/vmSizes")
def _list_sizes(call: Call) -> Answer:
    return Answer(200, {"value": vm_sizes(call.cloud.catalogue, require_region(call))})


def _vm_sku(size: Size, region: Region, reason: str | None = None) -> dict[str, Any]:
    return {
        "resourceType": "virtualMachines",
        "name": size.name,
        "tier": "Standard",
        "size": size.name.removeprefix("Standard_"),
        "family": size.family,
        "locations": [region.name],
        "locationInfo": [_location(region, region.zones)],
        "capabilities": [{"name": name, "value": value} for name, value in _capabilities(size)],
        "restrictions": [_restriction(region, reason)] if reason else [],
    }


def _disk_sku(tier: DiskTier, region: Region) -> dict[str, Any]:
    # A zone-redundant disk does not belong to one zone.
    zones = () if tier.sku.endswith("_ZRS") else region.zones
    return {
        "resourceType": "disks",
        "name": tier.sku,
        "tier": "Premium" if tier.sku.startswith("Premium") else "Standard",
        "size": tier.tier,
        "locations": [region.name],
        "locationInfo": [_location(region, zones)],
        "capabilities": [{"name": "MaxSizeGiB", "value": str(tier.size_gib)}],
        "restrictions": [],
    }


def _location(region: Region, zones: tuple[str, ...]) -> dict[str, Any]:
    return {"location": region.name, "zones": list(zones), "zoneDetails": []}


def _restriction(region: Region, reason: str) -> dict[str, Any]:
    return {
        "type": "Location",
        "values": [region.name],
        "restrictionInfo": {"locations": [region.name]},
        "reasonCode": reason,
    }


def _capabilities(size: Size) -> Iterator[tuple[str, str]]:
    yield "MaxResourceVolumeMB", str(size.temporary_disk_gib * 1024)
    yield "OSVhdSizeMB", str(OPERATING_SYSTEM_DISK_MIB)
    yield "vCPUs", str(size.vcpus)
    # A VM with a GPU cannot be migrated live.
    yield "MemoryPreservingMaintenanceSupported", str(size.gpu is None)
    yield "HyperVGenerations", ",".join(size.generations)
    if size.temporary_disk_gib:
        yield "SupportedEphemeralOSDiskPlacements", "ResourceDisk,CacheDisk"
    yield "MemoryGB", f"{size.memory_gib:g}"
    yield "MaxDataDiskCount", str(size.data_disks)
    yield "CpuArchitectureType", "x64"
    yield "LowPriorityCapable", str(size.spot)
    yield "PremiumIO", "True"
    yield "VMDeploymentTypes", "IaaS"
    yield "vCPUsAvailable", str(size.vcpus)
    if size.gpu:
        # A whole number even for part of a GPU: Azure counts devices.
        yield "GPUs", str(size.gpu.devices)
    yield "vCPUsPerCore", "1"
    yield from _disk_capabilities(size)
    if size.confidential:
        yield "ConfidentialComputingType", "SNP"
    yield "EphemeralOSDiskSupported", str(size.temporary_disk_gib > 0)
    yield "EncryptionAtHostSupported", "True"
    yield "CapacityReservationSupported", "False"
    yield "AcceleratedNetworkingEnabled", str(size.accelerated_networking)
    yield "RdmaEnabled", "False"
    yield "MaxNetworkInterfaces", str(size.nics)
    yield "UltraSSDAvailable", "True"


def _disk_capabilities(size: Size) -> Iterator[tuple[str, str]]:
    throughput = size.throughput
    yield "CombinedTempDiskAndCachedIOPS", str(throughput.cached_operations)
    yield "CombinedTempDiskAndCachedReadBytesPerSecond", str(throughput.cached_bytes)
    yield "CombinedTempDiskAndCachedWriteBytesPerSecond", str(throughput.cached_bytes)
    yield "CachedDiskBytes", str(throughput.cache_size_bytes)
    yield "UncachedDiskIOPS", str(throughput.uncached_operations)
    yield "UncachedDiskBytesPerSecond", str(throughput.uncached_bytes)
    if size.nvme_mib:
        yield "NvmeDiskSizeInMiB", str(size.nvme_mib)
        yield "NvmeSizePerDiskInMiB", str(size.nvme_mib // (size.gpu.devices if size.gpu else 1))
