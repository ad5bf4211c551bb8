"""The network interface: connects VNet, public IP and NSG."""

from collections.abc import Iterator

from gpuinfra.models.plan import Difference, Kind, Resource
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.resources.common import PlanInput, missing_tags, place, resource, same_id, whole_update
from gpuinfra.provision.resources.vnet import SUBNET, subnet_id

CONFIGURATION = "primary"


def desired(plan_input: PlanInput) -> Resource:
    """Return the desired NIC, whose public IP is deleted with the VM."""
    address = {"id": plan_input.id(Kind.PUBLIC_IP), "properties": {"deleteOption": "Delete"}}
    configuration = {
        "privateIPAllocationMethod": "Dynamic",
        "primary": True,
        "subnet": {"id": subnet_id(plan_input)},
        "publicIPAddress": address,
    }
    properties = {
        "ipConfigurations": [{"name": CONFIGURATION, "properties": configuration}],
        "networkSecurityGroup": {"id": plan_input.id(Kind.NSG)},
    }
    return resource(plan_input, Kind.NIC, properties)


def update(wanted: Resource, part: ObservedResource) -> Resource:
    """Return the update with IP configurations that others added: without them, Azure would remove their addresses."""
    body = whole_update(wanted, part).body
    others = (part.properties.get("ipConfigurations") or [])[1:]
    configurations = [*body["properties"]["ipConfigurations"], *others]
    return Resource(wanted.ref, {**body, "properties": {**body["properties"], "ipConfigurations": configurations}})


def is_as_created(part: ObservedResource) -> bool:
    """Return whether no VM uses the NIC, and its only configuration is in the subnet that `up` creates."""
    found = part.properties.get("ipConfigurations") or []
    if part.properties.get("virtualMachine") or len(found) != 1 or found[0].get("name") != CONFIGURATION:
        return False
    subnet = str(((found[0].get("properties") or {}).get("subnet") or {}).get("id") or "")
    return subnet.rpartition("/")[2].casefold() == SUBNET


def uses(part: ObservedResource) -> list[str]:
    """Return the IDs of its NSG, then of subnet and public IP of each configuration."""
    found = [part.properties.get("networkSecurityGroup")]
    for configuration in part.properties.get("ipConfigurations") or []:
        inner = configuration.get("properties") or {}
        found += [inner.get("subnet"), inner.get("publicIPAddress")]
    return [str((each or {}).get("id") or "") for each in found]


def differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Yield differences if the NIC is no longer connected to our resources."""
    yield from place(wanted, part)
    own = wanted.body["properties"]
    if not same_id(part.properties.get("networkSecurityGroup"), own["networkSecurityGroup"]["id"]):
        yield Difference("security group", "another or none", own["networkSecurityGroup"]["id"].rsplit("/", 1)[1])
    found = (part.properties.get("ipConfigurations") or [{}])[0].get("properties") or {}
    configuration = own["ipConfigurations"][0]["properties"]
    for name, words in (("subnet", "subnet"), ("publicIPAddress", "address")):
        if not same_id(found.get(name), configuration[name]["id"]):
            yield Difference(words, "another or none", configuration[name]["id"].rsplit("/", 1)[1])
    yield from missing_tags(wanted, part)
