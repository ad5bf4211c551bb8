"""The virtual network, with the one subnet that the machine is in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuinfra.models.plan import Difference
from gpuinfra.models.resource import Kind, Resource
from gpuinfra.provision.cloud import ObservedResource
from gpuinfra.provision.plan_input import PlanInput
from gpuinfra.provision.resources.common import missing_tags, place, resource, whole_update

SUBNET = "machines"
RANGE = "10.77.0.0/24"


def desired(setting: PlanInput) -> Resource:
    """A network of its own: nothing else is in it, so any range will do."""
    subnet = {"name": SUBNET, "properties": {"addressPrefix": RANGE}}
    return resource(setting, Kind.VNET, {"addressSpace": {"addressPrefixes": [RANGE]}, "subnets": [subnet]})


def subnet_id(setting: PlanInput) -> str:
    """What an interface names to be in the network."""
    return f"{setting.id(Kind.VNET)}/subnets/{SUBNET}"


def update(wanted: Resource, part: ObservedResource) -> Resource:
    """With all that others have put into it: a body without their subnets would remove them."""
    tagged, found = whole_update(wanted, part), part.properties.get("subnets") or []
    missing = [subnet for subnet in wanted.body["properties"]["subnets"] if subnet["name"] not in _names(found)]
    properties = {**part.properties, "subnets": [*found, *missing]}
    return Resource(wanted.ref, {**tagged.body, "properties": properties})


def _names(subnets: list[dict[str, Any]]) -> set[str]:
    return {str(subnet.get("name")) for subnet in subnets}


def is_as_created(part: ObservedResource) -> bool:
    """Whether it has our range, our subnet, and nothing else."""
    found = part.properties
    ranges = (found.get("addressSpace") or {}).get("addressPrefixes") or []
    subnets = [(each.get("name"), _ranges(each)) for each in found.get("subnets") or []]
    return ranges == [RANGE] and subnets == [(SUBNET, [RANGE])] and not found.get("virtualNetworkPeerings")


def _ranges(subnet: dict[str, Any]) -> list[str]:
    properties = subnet.get("properties") or {}
    one = properties.get("addressPrefix")
    return [one] if one else list(properties.get("addressPrefixes") or [])


def users(part: ObservedResource) -> list[dict[str, Any]]:
    """Configurations of NICs that are in it, by id."""
    inner = [subnet.get("properties") or {} for subnet in part.properties.get("subnets") or []]
    return [each for properties in inner for each in properties.get("ipConfigurations") or []]


def differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Its subnet may be missing; what others added to the network is left alone."""
    yield from place(wanted, part)
    if SUBNET not in _names(part.properties.get("subnets") or []):
        yield Difference(f"subnet {SUBNET}", "missing", RANGE)
    yield from missing_tags(wanted, part)
