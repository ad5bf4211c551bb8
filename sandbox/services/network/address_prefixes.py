"""Address spaces and subnets: what is a prefix, what lies in what, which address is free."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from itertools import pairwise

from gpuinfra.sandbox.services.network.fields import bad_request

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Azure keeps the first four addresses of a subnet and its last one for itself.
RESERVED = 4


def parse_prefix(prefix: str, resource_id: str) -> Network:
    """A prefix such as 10.0.0.0/16, or the error that Azure has for it."""
    address, separator, length = prefix.partition("/")
    try:
        # No length is wrong here, though it means a single address elsewhere.
        network = ipaddress.ip_network((address, _length(length) if separator else -1), strict=False)
    except ValueError:
        raise bad_request(
            "InvalidAddressPrefixFormat",
            f"Address prefix {prefix} of resource {resource_id} is not formatted correctly. It should follow CIDR "
            "notation, for example 10.0.0.0/24.",
        ) from None
    if network.network_address != ipaddress.ip_address(address):
        raise bad_request(
            "InvalidCIDRNotation",
            f"The address prefix {prefix} in resource {resource_id} has an invalid CIDR notation. For the given prefix "
            f"length, the address prefix should be {network}.",
        )
    return network


def _length(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 4 else -1


def contains(space: Iterable[Network], network: Network) -> bool:
    """Whether a network lies within one of an address space."""
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
    """Every subnet lies within the address space and none over another."""
    ranges: list[tuple[int, int, int, int]] = []
    for place, (name, prefixes) in enumerate(subnets):
        for prefix in prefixes:
            too_small = prefix.prefixlen > 29 if prefix.version == 4 else prefix.prefixlen != 64
            if too_small or not contains(space, prefix):
                raise bad_request(
                    "NetcfgInvalidSubnet", f"Subnet '{name}' is not valid in virtual network '{network_name}'."
                )
            first, last = int(prefix.network_address), int(prefix.broadcast_address)
            ranges.append((prefix.version, first, last, place))
    # Prefixes that overlap lie within each other, so one of them follows the other in this order.
    for before, after in pairwise(sorted(ranges)):
        if before[0] == after[0] and after[1] <= before[2]:
            raise bad_request(
                "NetcfgSubnetRangesOverlap",
                f"Subnet '{subnets[max(before[3], after[3])][0]}' is not valid because its IP address range overlaps "
                f"with that of an existing subnet in virtual network '{network_name}'.",
            )


def usable(network: ipaddress.IPv4Network, address: ipaddress.IPv4Address) -> bool:
    """Whether an address of a subnet is for its users."""
    return int(network.network_address) + RESERVED <= int(address) < int(network.broadcast_address)


def free_address(network: ipaddress.IPv4Network, taken: set[str]) -> str | None:
    """The first address of a subnet that is not taken."""
    first, last = int(network.network_address) + RESERVED, int(network.broadcast_address)
    for number in range(first, last):
        address = str(ipaddress.IPv4Address(number))
        if address not in taken:
            return address
    return None
