"""The network interface: joins network, address and security group."""

from __future__ import annotations

from collections.abc import Iterator

from gpuinfra.models.plan import Difference
from gpuinfra.models.resource import Kind, Resource
from gpuinfra.provision.cloud import ObservedResource
from gpuinfra.provision.plan_input import PlanInput
from gpuinfra.provision.resources.common import missing_tags, place, resource, same_id, whole_update
from gpuinfra.provision.resources.vnet import subnet_id

update = whole_update


def desired(setting: PlanInput) -> Resource:
    """The address goes when the machine goes."""
    address = {"id": setting.id(Kind.PUBLIC_IP), "properties": {"deleteOption": "Delete"}}
    configuration = {
        "privateIPAllocationMethod": "Dynamic",
        "primary": True,
        "subnet": {"id": subnet_id(setting)},
        "publicIPAddress": address,
    }
    properties = {
        "ipConfigurations": [{"name": "primary", "properties": configuration}],
        "networkSecurityGroup": {"id": setting.id(Kind.NSG)},
    }
    return resource(setting, Kind.NIC, properties)


def uses(part: ObservedResource) -> list[str]:
    """Ids of what it joins: its NSG, then subnet and public address of each configuration."""
    found = [part.properties.get("networkSecurityGroup")]
    for configuration in part.properties.get("ipConfigurations") or []:
        inner = configuration.get("properties") or {}
        found += [inner.get("subnet"), inner.get("publicIPAddress")]
    return [str((each or {}).get("id") or "") for each in found]


def differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Whether it is still joined to what is ours."""
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
