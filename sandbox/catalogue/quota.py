"""Quotas: what `locations/{location}/usages` answers, and whether one more machine fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import Catalogue, Size

REGIONAL = "cores"
SPOT = "lowPriorityCores"


@dataclass(frozen=True, slots=True)
class QuotaShortfall:
    """A quota that a machine would exceed, with the numbers of Azure's error."""

    quota: str
    region: str
    limit: int
    used: int
    required: int

    @property
    def new_limit(self) -> int:
        """The least limit with which the machine would fit."""
        return self.used + self.required


def family_of(size: Size) -> str:
    """The quota that a machine of this size draws on beside the regional one, unless it is a spot machine."""
    return size.family


def usage_items(
    catalogue: Catalogue, region: str, used: Mapping[str, int], limits: Mapping[str, int]
) -> list[dict[str, Any]]:
    """Every quota in a region. `limits` has those that differ from the catalogue's, `used` those in use."""
    if catalogue.region(region) is None:
        return []
    return [
        {
            "limit": limits.get(quota.name, quota.limit),
            "unit": "Count",
            "currentValue": used.get(quota.name, 0),
            "name": {"value": quota.name, "localizedValue": quota.display_name},
        }
        for quota in catalogue.quotas
    ]


def draws_on(size: Size, spot: bool) -> tuple[str, ...]:
    """The quotas counted in vCPUs that a machine draws on. Spot has one of its own and leaves the others alone."""
    return (SPOT,) if spot else (REGIONAL, family_of(size))


def missing_quota(
    catalogue: Catalogue, size: Size, region: str, spot: bool, used: Mapping[str, int], limits: Mapping[str, int]
) -> QuotaShortfall | None:
    """The first quota that one more machine would exceed: the region's before the family's."""
    defaults = {quota.name: quota.limit for quota in catalogue.quotas}
    for name in draws_on(size, spot):
        limit = limits.get(name, defaults.get(name, 0))
        in_use = used.get(name, 0)
        if in_use + size.vcpus > limit:
            return QuotaShortfall(name, region, limit, in_use, size.vcpus)
    return None


def quota_message(shortfall: QuotaShortfall) -> str:
    """Azure's words for it, those of the answer to a direct PUT."""
    subject = {REGIONAL: "Total Regional Cores", SPOT: "LowPriorityCores"}.get(
        shortfall.quota, f"{shortfall.quota} Cores"
    )
    kind = "regional" if shortfall.quota == REGIONAL else "low-priority" if shortfall.quota == SPOT else "per-vm"
    return (
        f"Operation could not be completed as it results in exceeding approved {subject} quota. "
        f"Additional details - Deployment Model: Resource Manager, Location: {shortfall.region}, "
        f"Current Limit: {shortfall.limit}, Current Usage: {shortfall.used}, "
        f"Additional Required: {shortfall.required}, (Minimum) New Limit Required: {shortfall.new_limit}. "
        "Setup Alerts when Quota reaches threshold. Learn more at https://aka.ms/quotamonitoringalerting . "
        "Submit a request for Quota increase at "
        "https://aka.ms/ProdportalCRP/#blade/Microsoft_Azure_Capacity/UsageAndQuota.ReactView "
        "by specifying parameters listed in the 'Details' section for deployment to succeed. "
        "Please read more about quota limits at "
        f"https://docs.microsoft.com/en-us/azure/azure-supportability/{kind}-quota-requests"
    )
