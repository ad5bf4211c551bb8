"""Subnets, which live in the body of their virtual network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.network.address_prefixes import Network, check_subnets, parse_prefix
from gpuinfra.sandbox.services.network.fields import (
    bad_request,
    boolean,
    choice,
    only_known,
    reference,
    text,
    texts,
    wrong_value,
)
from gpuinfra.sandbox.services.network.references import users_of
from gpuinfra.sandbox.services.network.tracked import UPDATING, Kind, require_reference

KIND = Kind("virtualNetworks/subnets", "Subnet", "subnet", retry_after=(3, 10))

_KNOWN = (
    "addressPrefix",
    "addressPrefixes",
    "networkSecurityGroup",
    "privateEndpointNetworkPolicies",
    "privateLinkServiceNetworkPolicies",
    "defaultOutboundAccess",
    # Read-only: clients send back what they have read.
    "ipConfigurations",
    "provisioningState",
)


def build(cloud: Cloud, network: Resource, name: str, item: dict[str, Any], path: str) -> dict[str, Any]:
    """A subnet's body from what was sent. Its range is checked with all the others by `check_ranges`."""
    KIND.check_name(name)
    own_id = f"{network.id}/subnets/{name}"
    sent = item.get("properties") or {}
    if not isinstance(sent, dict):
        raise wrong_value(sent, "Object", path)
    only_known(sent, _KNOWN, path)
    properties: dict[str, Any] = {"provisioningState": UPDATING}
    if (prefix := text(sent, "addressPrefix", path)) is not None:
        properties["addressPrefix"] = prefix
    if several := texts(sent, "addressPrefixes", path):
        properties["addressPrefixes"] = several
    if not prefixes(properties, own_id):
        raise bad_request("InvalidAddressPrefixFormat", f"Address prefix of resource {own_id} is missing.")
    if group := reference(sent, "networkSecurityGroup", path, "networkSecurityGroups"):
        found = require_reference(cloud, group, network.location, own_id)
        properties["networkSecurityGroup"] = {"id": found["id"]}
    properties["delegations"] = []
    policies = ("Disabled", "Enabled", "NetworkSecurityGroupEnabled", "RouteTableEnabled")
    properties["privateEndpointNetworkPolicies"] = choice(
        sent, "privateEndpointNetworkPolicies", path, policies, "Disabled"
    )
    properties["privateLinkServiceNetworkPolicies"] = choice(
        sent, "privateLinkServiceNetworkPolicies", path, policies[:2], "Enabled"
    )
    if sent.get("defaultOutboundAccess") is not None:
        properties["defaultOutboundAccess"] = boolean(sent, "defaultOutboundAccess", path)
    return {"name": name, "id": own_id, "properties": properties, "type": KIND.full_type}


def prefixes(properties: dict[str, Any], subnet_id: str) -> list[Network]:
    """The ranges of a subnet."""
    one = properties.get("addressPrefix")
    return [parse_prefix(prefix, subnet_id) for prefix in properties.get("addressPrefixes") or ([one] if one else [])]


def check_ranges(network: Resource, subnets: Sequence[dict[str, Any]]) -> None:
    """All subnets of a network fit into it, beside each other."""
    space = [parse_prefix(prefix, network.id) for prefix in network.properties["addressSpace"]["addressPrefixes"]]
    ranges = [(item["name"], prefixes(item["properties"], item["id"])) for item in subnets]
    check_subnets(network.name, space, ranges)


def check_unused(cloud: Cloud, subnet: dict[str, Any]) -> None:
    """Raise if anything is in the subnet."""
    if users := users_of(cloud, subnet["id"]):
        raise in_use(subnet["name"], users[0].user)


def in_use(name: str, user: str) -> ArmError:
    """A subnet that cannot be deleted."""
    return bad_request(
        "InUseSubnetCannotBeDeleted",
        f"Subnet {name} is in use by {user} and cannot be deleted. In order to delete the subnet, delete all the "
        "resources within the subnet. See aka.ms/deletesubnet.",
    )


def check_change(cloud: Cloud, old: dict[str, Any], new: dict[str, Any]) -> None:
    """A subnet keeps its range while anything is in it."""
    before, after = (prefixes(item["properties"], item["id"]) for item in (old, new))
    if before != after and users_of(cloud, old["id"]):
        raise bad_request(
            "InUsePrefixCannotBeDeleted",
            f"IpPrefix {before[0]} on Subnet {old['name']} has active allocations and cannot be deleted.",
        )
