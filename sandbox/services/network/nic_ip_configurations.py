"""The IP configurations of a NIC: subnet, private address and public IP."""

import ipaddress
from typing import Any

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import not_modelled
from gpuinfra.sandbox.kernel.routes import key
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.network import fields, subnets
from gpuinfra.sandbox.services.network.network_resource import Kind, build_items, new_item, require_reference, users_of
from gpuinfra.sandbox.services.network.subnets import free_address, usable

KIND = Kind("networkInterfaces/ipConfigurations", "IpConfiguration", "nic")

_KNOWN = (
    "subnet privateIPAddress privateIPAllocationMethod privateIPAddressVersion publicIPAddress primary "
    "provisioningState"
).split()


def build(cloud: Cloud, nic: Resource, sent: dict[str, Any], existing: Resource | None) -> list[dict[str, Any]]:
    """Return all IP configurations of a NIC from its body. Each gets a private address that nothing else has."""
    made = build_items(KIND, sent, existing, lambda *item: _configuration(cloud, nic, *item))
    if not made:
        raise fields.bad_request(
            "NetworkInterfaceMustHaveAtLeastOneIpConfiguration",
            f"Network interface {nic.id} must have one or more IP configurations.",
        )
    before = {item["name"].lower(): item for item in existing.properties["ipConfigurations"]} if existing else {}
    _set_primary(nic, made)
    _check_public_ips(cloud, nic, made)
    _assign_private_addresses(cloud, nic, made, before)
    return made


def _configuration(cloud: Cloud, nic: Resource, name: str, given: dict[str, Any], path: str) -> dict[str, Any]:
    configuration, sent = new_item(KIND, nic, name, given, path, _KNOWN)
    own_id, properties = configuration["id"], configuration["properties"]
    subnet = fields.reference(sent, "subnet", path, subnets.KIND.type)
    if subnet is None:
        raise fields.cannot_parse("MissingJsonReferenceId", f"Value for reference id is missing. Path {path}.subnet.")
    if fields.choice(sent, "privateIPAddressVersion", path, ("IPv4", "IPv6"), "IPv4") == "IPv6":
        raise not_modelled("private IPv6 addresses")
    properties |= {
        "privateIPAddress": fields.text(sent, "privateIPAddress", path) or "",
        "privateIPAllocationMethod": fields.choice(
            sent, "privateIPAllocationMethod", path, ("Dynamic", "Static"), "Dynamic"
        ),
    }
    if address := fields.reference(sent, "publicIPAddress", path, "publicIPAddresses"):
        found = require_reference(cloud, address, nic.location, own_id)
        properties["publicIPAddress"] = {"id": found["id"]}
    found = require_reference(cloud, subnet, nic.location, nic.id)
    properties["subnet"] = {"id": found["id"]}
    properties["primary"] = fields.boolean(sent, "primary", path)
    properties["privateIPAddressVersion"] = "IPv4"
    return configuration


def _set_primary(nic: Resource, made: list[dict[str, Any]]) -> None:
    primary = [item for item in made if item["properties"]["primary"]]
    if len(primary) > 1:
        raise fields.bad_request(
            "NetworkInterfaceHasMultiplePrimaryIpConfigurations",
            f"Network interface {nic.id} has more than one primary IP configuration.",
        )
    if not primary:
        made[0]["properties"]["primary"] = True


def _check_public_ips(cloud: Cloud, nic: Resource, made: list[dict[str, Any]]) -> None:
    used_here: dict[str, str] = {}
    for item in made:
        address = item["properties"].get("publicIPAddress", {}).get("id")
        if address is None:
            continue
        others = [use.user for use in users_of(cloud, address) if not _is_own(nic, use.user)]
        user = used_here.get(key(address)) or (others[0] if others else None)
        if user:
            raise fields.bad_request(
                "PublicIPAddressInUse",
                f"Resource {item['id']} is referencing public IP address {address} that is already allocated to "
                f"resource {user}.",
            )
        used_here[key(address)] = item["id"]


def _is_own(nic: Resource, user: str) -> bool:
    return user.lower().startswith(f"{nic.key}/")


def _assign_private_addresses(
    cloud: Cloud, nic: Resource, made: list[dict[str, Any]], before: dict[str, dict[str, Any]]
) -> None:
    """Assign static addresses first, then keep those that stay, then choose new ones."""
    pools = {key(item["properties"]["subnet"]["id"]): _Pool(cloud, nic, item) for item in made}
    waiting = []
    for item in sorted(made, key=lambda one: one["properties"]["privateIPAllocationMethod"] == "Dynamic"):
        properties = item["properties"]
        subnet = key(properties["subnet"]["id"])
        old = before.get(item["name"].lower(), {}).get("properties", {})
        if properties["privateIPAllocationMethod"] == "Static":
            pools[subnet].take(item, pools[subnet].static(item))
        elif key(old.get("subnet", {}).get("id", "")) == subnet and pools[subnet].is_free(old["privateIPAddress"]):
            pools[subnet].take(item, old["privateIPAddress"])
        else:
            waiting.append((pools[subnet], item))
    for pool, item in waiting:
        pool.take(item, pool.next())


class _Pool:
    """The addresses of a subnet, without those that the NIC itself has so far."""

    def __init__(self, cloud: Cloud, nic: Resource, item: dict[str, Any]) -> None:
        self.subnet = item["properties"]["subnet"]["id"]
        self.range = _range(cloud, self.subnet)
        uses = [use for use in users_of(cloud, self.subnet) if not _is_own(nic, use.user)]
        self.taken = {use.address or "": use.user for use in uses}

    def is_free(self, address: str) -> bool:
        return address not in self.taken

    def take(self, item: dict[str, Any], address: str) -> None:
        item["properties"]["privateIPAddress"] = address
        self.taken[address] = item["id"]

    def next(self) -> str:
        address = free_address(self.range, set(self.taken))
        if address is None:
            raise fields.bad_request(
                "SubnetIsFull",
                f"Subnet {self.subnet} with address prefix {self.range} does not have enough capacity for 1 IP "
                "addresses.",
            )
        return address

    def static(self, item: dict[str, Any]) -> str:
        value = item["properties"]["privateIPAddress"]
        try:
            address = ipaddress.IPv4Address(value)
        except ValueError:
            message = f"IP configuration {item['id']} has an invalid static private IP address '{value}'."
            raise fields.bad_request("InvalidIPAddress", message) from None
        if address not in self.range:
            raise fields.bad_request(
                "PrivateIPAddressNotInSubnet",
                f"Private static IP address {address} does not belong to the range of subnet prefix {self.range}.",
            )
        if not usable(self.range, address):
            raise fields.bad_request(
                "PrivateIPAddressInReservedRange",
                f"Private static IP address {address} falls within reserved IP range of subnet prefix {self.range}.",
            )
        if not self.is_free(str(address)):
            raise fields.bad_request(
                "PrivateIPAddressIsAllocated",
                f"IP configuration {item['id']} is using the private IP address {address} which is already allocated "
                f"to resource {self.taken[str(address)]}.",
            )
        return str(address)


def _range(cloud: Cloud, subnet_id: str) -> ipaddress.IPv4Network:
    network = cloud.store.get(subnet_id.rsplit("/", 2)[0])
    for item in network.properties["subnets"] if network else []:
        if key(item["id"]) == key(subnet_id):
            for prefix in subnets.prefixes(item["properties"], subnet_id):
                if isinstance(prefix, ipaddress.IPv4Network):
                    return prefix
    raise fields.bad_request("SubnetIsFull", f"Subnet {subnet_id} has no IPv4 address prefix.")


def delete_options(sent: dict[str, Any]) -> dict[str, str]:
    """Return what happens to each public IP when the VM is deleted: `Delete` or `Detach`."""
    found = {}
    for place, item in enumerate(fields.items(sent, "ipConfigurations", "properties")):
        path = f"properties.ipConfigurations[{place}].properties"
        address = (item.get("properties") or {}).get("publicIPAddress")
        if isinstance(address, dict) and isinstance(address.get("properties"), dict):
            option = fields.choice(address["properties"], "deleteOption", path, ("Delete", "Detach"), "Detach")
            found[key(str(address.get("id")))] = option
    return found
