"""The virtual network, with one subnet for the machine."""

from collections.abc import Iterator
from typing import Any

from gpuinfra.models.plan import Difference, Kind, Resource
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.resources.common import PlanInput, missing_tags, place, resource, whole_update

SUBNET = "machines"
RANGE = "10.77.0.0/24"


def desired(plan_input: PlanInput) -> Resource:
    """Return the desired VNet. Only this machine is in it, so any address range works."""
    subnet = {"name": SUBNET, "properties": {"addressPrefix": RANGE}}
    return resource(plan_input, Kind.VNET, {"addressSpace": {"addressPrefixes": [RANGE]}, "subnets": [subnet]})


def subnet_id(plan_input: PlanInput) -> str:
    """Return the ID of the subnet for the NIC."""
    return f"{plan_input.id(Kind.VNET)}/subnets/{SUBNET}"


def update(wanted: Resource, part: ObservedResource) -> Resource:
    """Return the update with everything that others added: without their subnets, Azure would remove them."""
    tagged, found = whole_update(wanted, part), part.properties.get("subnets") or []
    missing = [subnet for subnet in wanted.body["properties"]["subnets"] if subnet["name"] not in _names(found)]
    properties = {**part.properties, "subnets": [*found, *missing]}
    return Resource(wanted.ref, {**tagged.body, "properties": properties})


def _names(subnets: list[dict[str, Any]]) -> set[str]:
    return {str(subnet.get("name")) for subnet in subnets}


def has_own_subnet(part: ObservedResource) -> bool:
    """Return whether it contains our subnet with our address range."""
    return any(each.get("name") == SUBNET and _ranges(each) == [RANGE] for each in part.properties.get("subnets") or [])


def of_others(part: ObservedResource) -> list[str]:
    """Return the subnets and peerings of others in it. Azure deletes them with it."""
    found = part.properties
    subnets = [f"subnet {name}" for name in sorted(_names(found.get("subnets") or []) - {SUBNET})]
    return [*subnets, *(f"peering {each.get('name')}" for each in found.get("virtualNetworkPeerings") or [])]


def is_as_created(part: ObservedResource) -> bool:
    """Return whether it contains only our address range and our subnet."""
    found = part.properties
    ranges = (found.get("addressSpace") or {}).get("addressPrefixes") or []
    subnets = [(each.get("name"), _ranges(each)) for each in found.get("subnets") or []]
    return ranges == [RANGE] and subnets == [(SUBNET, [RANGE])] and not found.get("virtualNetworkPeerings")


def _ranges(subnet: dict[str, Any]) -> list[str]:
    properties = subnet.get("properties") or {}
    one = properties.get("addressPrefix")
    return [one] if one else list(properties.get("addressPrefixes") or [])


def users(part: ObservedResource) -> list[dict[str, Any]]:
    """Return the NIC configurations in its subnets."""
    inner = [subnet.get("properties") or {} for subnet in part.properties.get("subnets") or []]
    return [each for properties in inner for each in properties.get("ipConfigurations") or []]


def differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Yield differences, such as a missing subnet. What others added is ignored."""
    yield from place(wanted, part)
    if SUBNET not in _names(part.properties.get("subnets") or []):
        yield Difference(f"subnet {SUBNET}", "missing", RANGE)
    yield from missing_tags(wanted, part)
