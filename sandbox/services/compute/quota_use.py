"""How much of each quota the machines there are use, and the limits as they were set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from gpuinfra.sandbox.catalogue.quota import draws_on
from gpuinfra.sandbox.kernel.cloud import Cloud

MACHINES = "Microsoft.Compute/virtualMachines"


def limits(cloud: Cloud, region: str) -> Mapping[str, int]:
    """Limits of the region that differ from the catalogue's."""
    overridden: dict[str, dict[str, int]] = cloud.store.setting("quota-limits", {})
    return overridden.get(region, {})


def used(cloud: Cloud, region: str) -> Mapping[str, int]:
    """Cores by quota, and machines. Azure counts what is allocated; a spot machine counts while it exists."""
    counted: Counter[str] = Counter()
    for machine in cloud.store.resources(kind=MACHINES):
        if machine.location != region:
            continue
        counted["virtualMachines"] += 1
        size = cloud.catalogue.size(machine.properties.get("hardwareProfile", {}).get("vmSize", ""))
        spot = machine.properties.get("priority") in {"Spot", "Low"}
        state = cloud.meter.state(machine.key)
        if size is None or (not spot and state and state[0] == "deallocated"):
            continue
        for name in draws_on(size, spot):
            counted[name] += size.vcpus
    return counted
