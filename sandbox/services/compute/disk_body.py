"""The body of a managed disk: its size, tier and performance."""

import uuid
from dataclasses import dataclass
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import Catalogue
from gpuinfra.sandbox.kernel.clock import stamp
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_parameter
from gpuinfra.sandbox.kernel.routes import parse_id
from gpuinfra.sandbox.kernel.store import Resource

DISKS = "Microsoft.Compute/disks"
MAX_GIB = 32767

# Operations and MiB a second, by tier: https://learn.microsoft.com/azure/virtual-machines/disks-types
_PREMIUM = {
    "P6": (240, 50),
    "P10": (500, 100),
    "P15": (1100, 125),
    "P20": (2300, 150),
    "P30": (5000, 200),
    "P40": (7500, 250),
    "P50": (7500, 250),
    "P60": (16000, 500),
    "P70": (18000, 750),
    "P80": (20000, 900),
}
_STANDARD = {"60": (1300, 300), "70": (2000, 500), "80": (2000, 500)}


@dataclass(frozen=True)
class DiskPlan:
    """A disk to create."""

    id: str
    location: str
    sku: str
    size_gib: int
    creation: dict[str, Any]
    tags: dict[str, str]
    zones: tuple[str, ...] = ()
    generation: str | None = None
    """Set for a disk with an operating system."""


def check_sku(catalogue: Catalogue, sku: Any, target: str, default: str) -> str:
    """Return the disk SKU in Azure's own spelling, or raise Azure's error."""
    if sku is None:
        return default
    kinds = {tier.sku.casefold(): tier.sku for tier in catalogue.disk_tiers}
    found = kinds.get(sku.casefold()) if isinstance(sku, str) else None
    if found is None:
        raise invalid_parameter(
            target,
            f"SKU {sku} is not supported for resource type Disk in this region. Supported SKUs for this region are "
            f"{','.join(sorted(kinds.values()))}",
        )
    return found


def check_disk_size(size_gib: Any, target: str) -> int:
    """Return the size in GiB, or raise Azure's error."""
    if isinstance(size_gib, bool) or not isinstance(size_gib, int):
        raise invalid_parameter(target, f"The value of parameter {target} is invalid.")
    if not 1 <= size_gib <= MAX_GIB:
        raise invalid_parameter(target, f"Value of '{target}' must be between 1 and {MAX_GIB}, inclusive.")
    return size_gib


def new_disk(catalogue: Catalogue, plan: DiskPlan, now: float) -> Resource:
    """Return a new disk that is attached to no VM."""
    body: dict[str, Any] = {
        "name": parse_id(plan.id).name,
        "id": plan.id,
        "type": DISKS,
        "location": plan.location,
        "tags": plan.tags,
    }
    if plan.zones:
        body["zones"] = list(plan.zones)
    body["sku"] = {"name": plan.sku, "tier": _family(plan.sku)}
    properties: dict[str, Any] = {}
    if plan.generation:
        properties |= {
            "osType": "Linux",
            "hyperVGeneration": plan.generation,
            "supportedCapabilities": {"architecture": "x64"},
        }
    body["properties"] = properties | {
        "creationData": plan.creation,
        **_dimensions(catalogue, plan.sku, plan.size_gib),
        "encryption": {"type": "EncryptionAtRestWithPlatformKey"},
        "networkAccessPolicy": "AllowAll",
        "publicNetworkAccess": "Enabled",
        "timeCreated": stamp(now),
        "provisioningState": "Succeeded",
        "diskState": "Unattached",
        "uniqueId": str(uuid.uuid4()),
    }
    return Resource(plan.id, plan.location, body)


def resize(catalogue: Catalogue, disk: Resource, *, sku: str, size_gib: int) -> None:
    """Change the SKU or grow the disk. A disk cannot shrink."""
    if size_gib < disk.properties["diskSizeGB"]:
        message = (
            f"Disk {disk.name} of size {disk.properties['diskSizeGB']} GB cannot be resized to {size_gib} GB. New disk "
            "size must be greater than the existing size."
        )
        raise ArmError(409, "OperationNotAllowed", message, target="diskSizeGB")
    disk.body["sku"] = {"name": sku, "tier": _family(sku)}
    disk.properties.update(_dimensions(catalogue, sku, size_gib))


def _dimensions(catalogue: Catalogue, sku: str, size_gib: int) -> dict[str, Any]:
    tier = catalogue.disk_tier(sku, size_gib)
    name = tier.tier if tier else ""
    if sku.startswith("Premium"):
        operations, throughput = _PREMIUM.get(name, (120, 25))
    else:
        operations, throughput = _STANDARD.get(name[1:], (500, 60))
    return {
        "diskSizeGB": size_gib,
        "diskIOPSReadWrite": operations,
        "diskMBpsReadWrite": throughput,
        "diskSizeBytes": size_gib * 1024**3,
        "tier": name,
    }


def _family(sku: str) -> str:
    return "Premium" if sku.startswith("Premium") else "Standard"
