"""Quota: limits and use by region, `locations/{location}/usages`, and whether one more VM fits."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import Catalogue, Size
from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.routes import SUBSCRIPTION, Service
from gpuinfra.sandbox.services.common import require_region

service = Service()

REGIONAL = "cores"
SPOT = "lowPriorityCores"
QUOTA_LIMITS = "quota-limits"
"""The setting with limits that differ from the catalogue's: region, then family, then limit."""


@dataclass(frozen=True, slots=True)
class QuotaShortfall:
    """A quota that a VM would exceed, with the numbers that Azure's error shows."""

    quota: str
    region: str
    limit: int
    used: int
    required: int

    @property
    def new_limit(self) -> int:
        """The smallest limit under which the VM fits."""
        return self.used + self.required


def usage_items(
    catalogue: Catalogue, region: str, used: Mapping[str, int], limits: Mapping[str, int]
) -> list[dict[str, Any]]:
    """List every quota of a region. `limits` holds those that differ from the catalogue's, `used` those in use."""
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
    """Return the vCPU quotas that a VM counts against. Spot VMs have a quota of their own."""
    return (SPOT,) if spot else (REGIONAL, size.family)


def missing_quota(
    catalogue: Catalogue, size: Size, region: str, spot: bool, used: Mapping[str, int], limits: Mapping[str, int]
) -> QuotaShortfall | None:
    """Return the first quota that one more VM would exceed: the region's before the family's."""
    defaults = {quota.name: quota.limit for quota in catalogue.quotas}
    for name in draws_on(size, spot):
        limit = limits.get(name, defaults.get(name, 0))
        in_use = used.get(name, 0)
        if in_use + size.vcpus > limit:
            return QuotaShortfall(name, region, limit, in_use, size.vcpus)
    return None


def quota_message(shortfall: QuotaShortfall) -> str:
    """Return Azure's message, as it answers a direct PUT."""
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


VIRTUAL_MACHINES = "Microsoft.Compute/virtualMachines"


def limits(cloud: Cloud, region: str) -> Mapping[str, int]:
    """Return the limits of the region that differ from the catalogue's."""
    overridden: dict[str, dict[str, int]] = cloud.store.setting(QUOTA_LIMITS, {})
    return overridden.get(region, {})


def used(cloud: Cloud, region: str) -> Mapping[str, int]:
    """Return used vCPUs by quota, and the count of VMs. A deallocated VM counts only if it is a Spot VM."""
    counted: Counter[str] = Counter()
    for vm in cloud.store.resources(kind=VIRTUAL_MACHINES):
        if vm.location != region:
            continue
        counted["virtualMachines"] += 1
        size = cloud.catalogue.size(vm.properties.get("hardwareProfile", {}).get("vmSize", ""))
        spot = vm.properties.get("priority") in {"Spot", "Low"}
        state = cloud.meter.state(vm.key)
        if size is None or (not spot and state and state[0] == "deallocated"):
            continue
        for name in draws_on(size, spot):
            counted[name] += size.vcpus
    return counted


@service.route("GET", f"{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{{location}}/usages")
def _list_usages(call: Call) -> Answer:
    cloud, region = call.cloud, require_region(call)
    return Answer(200, {"value": usage_items(cloud.catalogue, region, used(cloud, region), limits(cloud, region))})
