"""Convert Azure's lists of sizes and quota to our types. Pure: the input is ARM's JSON."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuinfra.models.offer import Offer, Quota

PREFIX = "standard_nc"


def offers(items: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], Offer]:
    """Return the NC sizes in a list of SKUs by size and region. Other SKUs are ignored."""
    found = [offer for item in items if is_wanted(item) for offer in _offers_of(item)]
    return {(offer.size, offer.region): offer for offer in found}


def is_wanted(item: Mapping[str, Any]) -> bool:
    """Return whether the SKU is a VM size of the NC series."""
    return item.get("resourceType") == "virtualMachines" and str(item.get("name")).casefold().startswith(PREFIX)


def _offers_of(item: Mapping[str, Any]) -> list[Offer]:
    capabilities = {each["name"]: str(each["value"]) for each in item.get("capabilities") or []}
    zones = {_region(info["location"]): tuple(info.get("zones") or ()) for info in item.get("locationInfo") or []}
    return [
        Offer(
            size=item["name"],
            region=region,
            zones=tuple(sorted(zones.get(region, ()))),
            family=str(item.get("family") or ""),
            vcpus=int(capabilities.get("vCPUs", 0)),
            memory_gib=float(capabilities.get("MemoryGB", 0)),
            gpus=int(capabilities.get("GPUs", 0)),
            generations=tuple(part for part in capabilities.get("HyperVGenerations", "").split(",") if part),
            spot_capable=capabilities.get("LowPriorityCapable", "").casefold() == "true",
            restriction=_restriction(item, region),
            restricted_zones=_restricted_zones(item, region),
            trusted_launch=capabilities.get("TrustedLaunchDisabled", "").casefold() != "true",
        )
        for region in map(_region, item.get("locations") or zones)
    ]


def _restriction(item: Mapping[str, Any], region: str) -> str | None:
    for each in item.get("restrictions") or []:
        info = each.get("restrictionInfo") or {}
        where = map(_region, info.get("locations") or each.get("values") or ())
        if each.get("type") == "Location" and region in where:
            return str(each.get("reasonCode") or "Restricted")
    return None


def _restricted_zones(item: Mapping[str, Any], region: str) -> tuple[str, ...]:
    found: set[str] = set()
    for each in item.get("restrictions") or []:
        info = each.get("restrictionInfo") or {}
        where = [_region(location) for location in info.get("locations") or ()]
        if each.get("type") == "Zone" and (region in where or not where):
            # Here `values` has the region, and the zones are inside. Azure has swapped them before.
            found |= set(info.get("zones") or [zone for zone in each.get("values") or () if str(zone).isdigit()])
    return tuple(sorted(found))


def quotas(items: Iterable[Mapping[str, Any]]) -> dict[str, Quota]:
    """Return the quotas by Azure's name."""
    found = [
        Quota(item["name"]["value"], int(item.get("limit") or 0), int(item.get("currentValue") or 0)) for item in items
    ]
    return {quota.name: quota for quota in found}


def _region(name: str) -> str:
    # Older responses have capitals, as in `SouthCentralUS`.
    return name.replace(" ", "").lower()
