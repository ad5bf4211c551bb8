"""What other services do with network resources: machines attach interfaces, make them inline, and delete them."""

from __future__ import annotations

from typing import Any

from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import invalid_parameter
from gpuinfra.sandbox.kernel.ids import ResourceId, key
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import section
from gpuinfra.sandbox.services.network import interfaces, public_addresses
from gpuinfra.sandbox.services.network.fields import items, text
from gpuinfra.sandbox.services.network.references import keep
from gpuinfra.sandbox.services.network.tracked import NAMESPACE, SUCCEEDED, Kind, check_location, not_provisioned


def attach_interface(cloud: Cloud, interface_id: str, machine_id: str, *, primary: bool = True) -> None:
    """Let an interface belong to a machine. One that belongs to another is refused, and so is one that is not there."""
    interface = _interface(cloud, interface_id)
    owner = interfaces.owner(cloud, interface)
    if owner and key(owner) != key(machine_id):
        raise interfaces.in_use(interface, owner)
    if (state := interface.properties["provisioningState"]) != SUCCEEDED:
        raise not_provisioned(interface.id, machine_id, state, "PutNetworkInterfaceOperation")
    interface.properties["virtualMachine"] = {"id": machine_id}
    interface.properties["primary"] = primary
    interface.properties.setdefault("macAddress", interfaces.hardware_address(interface))
    keep(cloud, interface)
    for address_id in interfaces.addresses_of(interface):
        public_addresses.assign(cloud, address_id)


def detach_interface(cloud: Cloud, interface_id: str) -> None:
    """Let an interface belong to no machine. Nothing happens where it is not there or belongs to none."""
    interface = cloud.store.get(interface_id)
    if interface is None or "virtualMachine" not in interface.properties:
        return
    for name in ("virtualMachine", "primary", "macAddress"):
        interface.properties.pop(name, None)
    keep(cloud, interface)


def create_inline_interface(
    cloud: Cloud, call: Call, group: str, location: str, name: str, configuration: dict[str, Any]
) -> str:
    """Make an interface from an entry of a machine's `networkProfile.networkInterfaceConfigurations`; its id.

    Public addresses that its `ipConfigurations` describe are made too. Everything is there at once.
    """
    interfaces.KIND.check_name(name)
    properties = dict(section(configuration, "properties"))
    configurations = []
    for place, item in enumerate(items(properties, "ipConfigurations", "properties")):
        inner = dict(section(item, "properties"))
        described = section(inner, "publicIPAddressConfiguration")
        inner.pop("publicIPAddressConfiguration", None)
        if described:
            path = f"properties.ipConfigurations[{place}].publicIPAddressConfiguration"
            address_name = text(described, "name", path) or ""
            address_id = create_inline_address(cloud, call, group, location, address_name, described)
            option = text(section(described, "properties"), "deleteOption", f"{path}.properties")
            inner["publicIPAddress"] = {"id": address_id, "properties": {"deleteOption": option}}
        configurations.append({**item, "properties": inner})
    properties = {name: value for name, value in properties.items() if name not in {"deleteOption", "primary"}}
    body = {
        "location": location,
        "tags": configuration.get("tags"),
        "properties": {**properties, "ipConfigurations": configurations},
    }
    wanted, existing = _wanted(cloud, group, location, interfaces.KIND, name)
    return keep(cloud, interfaces.build(cloud, wanted, location, body, existing)).id


def create_inline_address(
    cloud: Cloud,
    call: Call,  # noqa: ARG001 the same for all that is made inline
    group: str,
    location: str,
    name: str,
    configuration: dict[str, Any],
) -> str:
    """Make a public address from a `publicIPAddressConfiguration`; its id. It has its address at once."""
    public_addresses.KIND.check_name(name)
    properties = dict(section(configuration, "properties"))
    properties.pop("deleteOption", None)
    body = {
        "location": location,
        "sku": configuration.get("sku"),
        "zones": configuration.get("zones"),
        "tags": configuration.get("tags"),
        "properties": properties,
    }
    wanted, existing = _wanted(cloud, group, location, public_addresses.KIND, name)
    address = public_addresses.build(cloud, wanted, location, body, existing)
    address.properties["provisioningState"] = SUCCEEDED
    public_addresses.assign_static(cloud, address)
    return keep(cloud, address).id


def delete_interface(cloud: Cloud, interface_id: str) -> None:
    """Delete an interface at once, as a machine's `deleteOption` asks, and its addresses with that option as well."""
    interface = cloud.store.get(interface_id)
    if interface is None:
        return
    cloud.store.delete(interface_id)
    for address_id, option in interface.hidden.get("addressDeleteOptions", {}).items():
        if option == "Delete":
            delete_address(cloud, address_id)


def delete_address(cloud: Cloud, address_id: str) -> None:
    """Delete a public address at once, unless something uses it or it is not there."""
    if public_addresses.user_of(cloud, address_id) is None:
        cloud.store.delete(address_id)


def public_address_of(cloud: Cloud, interface_id: str) -> str | None:
    """The public address of an interface's primary configuration."""
    configuration = interfaces.primary_configuration(cloud.store.get(interface_id))
    reference = configuration.get("publicIPAddress", {}).get("id")
    address = cloud.store.get(reference) if reference else None
    return address.properties.get("ipAddress") if address else None


def private_address_of(cloud: Cloud, interface_id: str) -> str | None:
    """The private address of an interface's primary configuration."""
    return interfaces.primary_configuration(cloud.store.get(interface_id)).get("privateIPAddress")


def _wanted(cloud: Cloud, group: str, location: str, kind: Kind, name: str) -> tuple[str, Resource | None]:
    wanted = str(ResourceId(cloud.subscription, group, NAMESPACE, ((kind.type, name),)))
    existing = cloud.store.get(wanted)
    check_location(existing, location)
    return (existing.id if existing else wanted), existing


def _interface(cloud: Cloud, interface_id: str) -> Resource:
    try:
        found = cloud.store.get(interface_id)
    except ValueError:
        found = None
    if found is None or found.type.lower() != interfaces.KIND.full_type.lower():
        raise invalid_parameter(
            "networkProfile.networkInterfaces.id",
            f"The network interface '{interface_id}' that the machine refers to was not found.",
        )
    return found
