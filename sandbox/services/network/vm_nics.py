"""What VMs do with NICs: attach and detach them, create them inline, and delete them."""

from typing import Any

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import invalid_parameter
from gpuinfra.sandbox.kernel.resource_id import ResourceId, key
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import check_same_location, section
from gpuinfra.sandbox.services.network import nics, public_ips
from gpuinfra.sandbox.services.network.fields import items, text
from gpuinfra.sandbox.services.network.network_resource import (
    NAMESPACE,
    SUCCEEDED,
    Kind,
    keep,
    not_provisioned,
    users_of,
)


def attach_nic(cloud: Cloud, nic_id: str, vm_id: str, *, primary: bool = True) -> None:
    """Attach a NIC to a VM. Raises if it does not exist or is attached to another VM."""
    nic = _require_nic(cloud, nic_id)
    owner = nics.owner(cloud, nic)
    if owner and key(owner) != key(vm_id):
        raise nics.in_use(nic, owner)
    if (state := nic.properties["provisioningState"]) != SUCCEEDED:
        raise not_provisioned(nic.id, vm_id, state, "PutNetworkInterfaceOperation")
    nic.properties["virtualMachine"] = {"id": vm_id}
    nic.properties["primary"] = primary
    nic.properties.setdefault("macAddress", nics.mac_address(nic))
    keep(cloud, nic)
    for public_ip_id in nics.public_ip_ids(nic):
        public_ips.assign_address(cloud, public_ip_id)


def detach_nic(cloud: Cloud, nic_id: str) -> None:
    """Detach a NIC. Nothing happens if it does not exist or is not attached."""
    nic = cloud.store.get(nic_id)
    if nic is None or "virtualMachine" not in nic.properties:
        return
    for name in ("virtualMachine", "primary", "macAddress"):
        nic.properties.pop(name, None)
    keep(cloud, nic)


def create_inline_nic(cloud: Cloud, group: str, location: str, name: str, configuration: dict[str, Any]) -> str:
    """Create a NIC from an entry of `networkProfile.networkInterfaceConfigurations`, and return its id.

    The public IPs that its `ipConfigurations` describe are created too. Everything exists at once.
    """
    nics.KIND.check_name(name)
    properties = dict(section(configuration, "properties"))
    configurations = []
    for place, item in enumerate(items(properties, "ipConfigurations", "properties")):
        inner = dict(section(item, "properties"))
        described = section(inner, "publicIPAddressConfiguration")
        inner.pop("publicIPAddressConfiguration", None)
        if described:
            path = f"properties.ipConfigurations[{place}].publicIPAddressConfiguration"
            address_name = text(described, "name", path) or ""
            public_ip_id = _create_inline_public_ip(cloud, group, location, address_name, described)
            option = text(section(described, "properties"), "deleteOption", f"{path}.properties")
            inner["publicIPAddress"] = {"id": public_ip_id, "properties": {"deleteOption": option}}
        configurations.append({**item, "properties": inner})
    properties = {name: value for name, value in properties.items() if name not in {"deleteOption", "primary"}}
    body = {
        "location": location,
        "tags": configuration.get("tags"),
        "properties": {**properties, "ipConfigurations": configurations},
    }
    wanted, existing = _wanted(cloud, group, location, nics.KIND, name)
    return keep(cloud, nics.build(cloud, wanted, location, body, existing)).id


def _create_inline_public_ip(cloud: Cloud, group: str, location: str, name: str, configuration: dict[str, Any]) -> str:
    public_ips.KIND.check_name(name)
    properties = dict(section(configuration, "properties"))
    properties.pop("deleteOption", None)
    body = {
        "location": location,
        "sku": configuration.get("sku"),
        "zones": configuration.get("zones"),
        "tags": configuration.get("tags"),
        "properties": properties,
    }
    wanted, existing = _wanted(cloud, group, location, public_ips.KIND, name)
    address = public_ips.build(cloud, wanted, location, body, existing)
    address.properties["provisioningState"] = SUCCEEDED
    public_ips.assign_static_address(cloud, address)
    return keep(cloud, address).id


def delete_nic(cloud: Cloud, nic_id: str) -> None:
    """Delete a NIC at once, and those of its public IPs whose `deleteOption` is Delete."""
    nic = cloud.store.get(nic_id)
    if nic is None:
        return
    cloud.store.delete(nic_id)
    for public_ip_id, option in nic.hidden.get("addressDeleteOptions", {}).items():
        if option == "Delete" and not users_of(cloud, public_ip_id):
            cloud.store.delete(public_ip_id)


def public_ip_of(cloud: Cloud, nic_id: str) -> str | None:
    """Return the public address of a NIC's primary configuration."""
    configuration = nics.primary_configuration(cloud.store.get(nic_id))
    reference = configuration.get("publicIPAddress", {}).get("id")
    address = cloud.store.get(reference) if reference else None
    return address.properties.get("ipAddress") if address else None


def _wanted(cloud: Cloud, group: str, location: str, kind: Kind, name: str) -> tuple[str, Resource | None]:
    wanted = str(ResourceId(cloud.subscription, group, NAMESPACE, ((kind.type, name),)))
    existing = cloud.store.get(wanted)
    if existing is not None:
        check_same_location(existing, location)
    return (existing.id if existing else wanted), existing


def _require_nic(cloud: Cloud, nic_id: str) -> Resource:
    found = cloud.store.get(nic_id)
    if found is None or found.type.lower() != nics.KIND.full_type.lower():
        raise invalid_parameter(
            "networkProfile.networkInterfaces.id",
            f"The network interface '{nic_id}' that the machine refers to was not found.",
        )
    return found
