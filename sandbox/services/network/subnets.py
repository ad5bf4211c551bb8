"""Subnets, which are stored in the body of their virtual network, and their address ranges."""

import ipaddress
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.network import fields
from gpuinfra.sandbox.services.network.network_resource import Kind, new_item, require_reference, users_of

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Azure reserves the first four addresses of a subnet and the last one.
RESERVED = 4


def parse_prefix(prefix: str, resource_id: str) -> Network:
    """Return the range of a prefix such as 10.0.0.0/16, or raise Azure's error."""
    address, separator, length = prefix.partition("/")
    try:
        # A missing length is an error here; ip_network would read it as a single address.
        network = ipaddress.ip_network((address, _length(length) if separator else -1), strict=False)
    except ValueError:
        raise fields.bad_request(
            "InvalidAddressPrefixFormat",
            f"Address prefix {prefix} of resource {resource_id} is not formatted correctly. It should follow CIDR "
            "notation, for example 10.0.0.0/24.",
        ) from None
    if network.network_address != ipaddress.ip_address(address):
        raise fields.bad_request(
            "InvalidCIDRNotation",
            f"The address prefix {prefix} in resource {resource_id} has an invalid CIDR notation. For the given prefix "
            f"length, the address prefix should be {network}.",
        )
    return network


def _length(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else -1


def contains(space: Iterable[Network], network: Network) -> bool:
    """Whether the range lies within the address space."""
    return any(
        (
            isinstance(outer, ipaddress.IPv4Network)
            and isinstance(network, ipaddress.IPv4Network)
            and network.subnet_of(outer)
        )
        or (
            isinstance(outer, ipaddress.IPv6Network)
            and isinstance(network, ipaddress.IPv6Network)
            and network.subnet_of(outer)
        )
        for outer in space
    )


def check_subnets(
    network_name: str, space: Sequence[Network], subnets: Sequence[tuple[str, Sequence[Network]]]
) -> None:
    """Check that every subnet lies within the address space and that no two overlap."""
    ranges: list[tuple[int, int, int, int]] = []
    for place, (name, prefixes) in enumerate(subnets):
        for prefix in prefixes:
            too_small = prefix.prefixlen > 29 if prefix.version == 4 else prefix.prefixlen != 64
            if too_small or not contains(space, prefix):
                raise fields.bad_request(
                    "NetcfgInvalidSubnet", f"Subnet '{name}' is not valid in virtual network '{network_name}'."
                )
            first, last = int(prefix.network_address), int(prefix.broadcast_address)
            ranges.append((prefix.version, first, last, place))
    # Of two overlapping prefixes one contains the other, so sorting puts them next to each other.
    for before, after in pairwise(sorted(ranges)):
        if before[0] == after[0] and after[1] <= before[2]:
            raise fields.bad_request(
                "NetcfgSubnetRangesOverlap",
                f"Subnet '{subnets[max(before[3], after[3])][0]}' is not valid because its IP address range overlaps "
                f"with that of an existing subnet in virtual network '{network_name}'.",
            )


def usable(network: ipaddress.IPv4Network, address: ipaddress.IPv4Address) -> bool:
    """Whether Azure leaves this address of the subnet to its users."""
    return int(network.network_address) + RESERVED <= int(address) < int(network.broadcast_address)


def free_address(network: ipaddress.IPv4Network, taken: set[str]) -> str | None:
    """Return the first address of the subnet that is not taken."""
    first, last = int(network.network_address) + RESERVED, int(network.broadcast_address)
    for number in range(first, last):
        address = str(ipaddress.IPv4Address(number))
        if address not in taken:
            return address
    return None


KIND = Kind("virtualNetworks/subnets", "Subnet", "subnet", retry_after=(3, 10))

# Read-only: clients send back what they have read.
_KNOWN = (
    "addressPrefix addressPrefixes networkSecurityGroup privateEndpointNetworkPolicies "
    "privateLinkServiceNetworkPolicies defaultOutboundAccess ipConfigurations provisioningState"
).split()


def build(cloud: Cloud, network: Resource, name: str, given: dict[str, Any], path: str) -> dict[str, Any]:
    """Return a subnet's body from a request's. `check_ranges` checks its range with all the others."""
    subnet, sent = new_item(KIND, network, name, given, path, _KNOWN)
    own_id, properties = subnet["id"], subnet["properties"]
    if (prefix := fields.text(sent, "addressPrefix", path)) is not None:
        properties["addressPrefix"] = prefix
    if several := fields.texts(sent, "addressPrefixes", path):
        properties["addressPrefixes"] = several
    if not prefixes(properties, own_id):
        raise fields.bad_request("InvalidAddressPrefixFormat", f"Address prefix of resource {own_id} is missing.")
    if group := fields.reference(sent, "networkSecurityGroup", path, "networkSecurityGroups"):
        found = require_reference(cloud, group, network.location, own_id)
        properties["networkSecurityGroup"] = {"id": found["id"]}
    properties["delegations"] = []
    policies = ("Disabled", "Enabled", "NetworkSecurityGroupEnabled", "RouteTableEnabled")
    properties["privateEndpointNetworkPolicies"] = fields.choice(
        sent, "privateEndpointNetworkPolicies", path, policies, "Disabled"
    )
    properties["privateLinkServiceNetworkPolicies"] = fields.choice(
        sent, "privateLinkServiceNetworkPolicies", path, policies[:2], "Enabled"
    )
    if sent.get("defaultOutboundAccess") is not None:
        properties["defaultOutboundAccess"] = fields.boolean(sent, "defaultOutboundAccess", path)
    return subnet


def prefixes(properties: dict[str, Any], subnet_id: str) -> list[Network]:
    """Return the ranges of a subnet."""
    one = properties.get("addressPrefix")
    return [parse_prefix(prefix, subnet_id) for prefix in properties.get("addressPrefixes") or ([one] if one else [])]


def check_ranges(network: Resource, subnets: Sequence[dict[str, Any]]) -> None:
    """Check that all subnets of a virtual network fit into it without overlap."""
    space = [parse_prefix(prefix, network.id) for prefix in network.properties["addressSpace"]["addressPrefixes"]]
    ranges = [(item["name"], prefixes(item["properties"], item["id"])) for item in subnets]
    check_subnets(network.name, space, ranges)


def check_unused(cloud: Cloud, subnet: dict[str, Any]) -> None:
    """Raise if anything is in the subnet."""
    if users := users_of(cloud, subnet["id"]):
        raise in_use(subnet["name"], users[0].user)


def in_use(name: str, user: str) -> ArmError:
    """Return the error for deleting a subnet in use."""
    return fields.bad_request(
        "InUseSubnetCannotBeDeleted",
        f"Subnet {name} is in use by {user} and cannot be deleted. In order to delete the subnet, delete all the "
        "resources within the subnet. See aka.ms/deletesubnet.",
    )


def check_change(cloud: Cloud, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Check that a subnet in use keeps its range."""
    before, after = (prefixes(item["properties"], item["id"]) for item in (old, new))
    if before != after and users_of(cloud, old["id"]):
        raise fields.bad_request(
            "InUsePrefixCannotBeDeleted",
            f"IpPrefix {before[0]} on Subnet {old['name']} has active allocations and cannot be deleted.",
        )
