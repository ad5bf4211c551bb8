"""The NICs of a VM: existing ones, and those that its `networkProfile` describes."""

import uuid
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import Size
from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_parameter
from gpuinfra.sandbox.kernel.locks import keeps
from gpuinfra.sandbox.kernel.routes import ResourceId, key, parse_id
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import check_same_location, section
from gpuinfra.sandbox.services.compute.fields import boolean, choice, invalid_value, required, text
from gpuinfra.sandbox.services.network import fields as network_fields
from gpuinfra.sandbox.services.network import nics, public_ips
from gpuinfra.sandbox.services.network.network_resource import SUCCEEDED, Kind, keep, not_provisioned, users_of


def read_network(call: Call, vm_id: str, location: str, size: Size, properties: dict[str, Any]) -> dict[str, Any]:
    """Check the NICs of a VM, create those that the body describes inline, and return the profile as Azure shows it."""
    if properties.get("networkProfile") is None:
        raise required("networkProfile")
    profile = section(properties, "networkProfile")
    references = section(profile, "networkInterfaces", list)
    inline = section(profile, "networkInterfaceConfigurations", list)
    if references and inline:
        raise invalid_parameter(
            "networkProfile",
            "networkInterfaces and networkInterfaceConfigurations cannot be in one request.",
        )
    if not all(isinstance(one, dict) for one in (*references, *inline)):
        raise invalid_value("networkProfile.networkInterfaces")
    _check_count(vm_id, size, references or inline)
    if inline:
        if not text(profile.get("networkApiVersion"), "networkApiVersion"):
            raise required("networkProfile.networkApiVersion")
        shown = [_made(call, vm_id, location, one) for one in inline]
    else:
        shown = [_referred(call.cloud, vm_id, location, one) for one in references]
    if len({key(one["id"]) for one in shown}) < len(shown):
        raise invalid_parameter("networkInterfaces", "A network interface is there more than once.")
    return {"networkInterfaces": shown}


def _check_count(vm_id: str, size: Size, nics: list[dict[str, Any]]) -> None:
    if not nics:
        raise required("networkProfile.networkInterfaces")
    if len(nics) > size.nics:
        raise ArmError(
            400,
            "NetworkInterfaceCountExceeded",
            f"The number of network interfaces for virtual machine {parse_id(vm_id).name} exceeds the maximum "
            f"allowed for the virtual machine size {size.name}. The number of network interfaces is {len(nics)} "
            f"and the maximum allowed is {size.nics}.",
        )
    primary = [one for one in nics if section(one, "properties").get("primary")]
    if len(nics) > 1 and len(primary) != 1:
        raise ArmError(
            400,
            "VirtualMachineMustHaveOneNetworkInterfaceAsPrimary",
            f"Virtual machine {vm_id} must have one network interface set as the primary.",
        )


def _options(given: dict[str, Any]) -> dict[str, Any]:
    properties = section(given, "properties")
    shown: dict[str, Any] = {}
    if properties.get("primary") is not None:
        shown["primary"] = boolean(properties["primary"], "networkInterfaces.properties.primary", False)
    option = choice(properties.get("deleteOption"), "networkInterfaces.properties.deleteOption", ("Delete", "Detach"))
    if option:
        shown["deleteOption"] = option
    return {"properties": shown} if shown else {}


def _referred(cloud: Cloud, vm_id: str, location: str, given: dict[str, Any]) -> dict[str, Any]:
    nic_id = text(given.get("id"), "networkInterfaces.id")
    if not nic_id:
        raise required("networkInterfaces.id")
    nic = cloud.store.get(nic_id)
    if nic is None or nic.type.lower() != nics.KIND.full_type.lower() or nic.location != location:
        raise ArmError(
            400,
            "InvalidResourceReference",
            f"Resource {nic_id} referenced by resource {vm_id} was not found. Please make sure that the "
            "referenced resource exists, and that both resources are in the same region.",
            details=[],
        )
    return {"id": nic.id, **_options(given)}


def _made(call: Call, vm_id: str, location: str, given: dict[str, Any]) -> dict[str, Any]:
    name = text(given.get("name"), "networkInterfaceConfigurations.name")
    if not name:
        raise required("networkInterfaceConfigurations.name")
    options = _options(given)
    group = parse_id(vm_id).group
    made = create_inline_nic(call.cloud, group, location, f"{name}-{uuid.uuid4().hex[:8]}", given)
    return {"id": made, **options}


def _nics(vm: Resource) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = vm.properties.get("networkProfile", {}).get("networkInterfaces", [])
    return found


def attach_nics(cloud: Cloud, vm: Resource) -> None:
    """Attach every NIC of the VM."""
    alone = len(_nics(vm)) == 1
    for one in _nics(vm):
        primary = alone or bool(one.get("properties", {}).get("primary"))
        attach_nic(cloud, one["id"], vm.id, primary=primary)


def change_nics(cloud: Cloud, vm: Resource, profile: dict[str, Any]) -> None:
    """Replace the VM's NICs by those of the profile."""
    wanted = {key(one["id"]) for one in profile["networkInterfaces"]}
    for one in _nics(vm):
        if key(one["id"]) not in wanted:
            detach_nic(cloud, one["id"])
    vm.properties["networkProfile"] = profile
    attach_nics(cloud, vm)


def release_nics(cloud: Cloud, vm: Resource) -> None:
    """Delete or detach the NICs and public IPs of a deleted VM, as each `deleteOption` says. Locked ones stay."""
    for one in _nics(vm):
        if one.get("properties", {}).get("deleteOption") == "Delete" and not keeps(cloud, one["id"]):
            delete_nic(cloud, one["id"])
        else:
            detach_nic(cloud, one["id"])


def public_ip_of_vm(cloud: Cloud, vm: Resource) -> str | None:
    """Return the public IP of the primary NIC."""
    ordered = sorted(_nics(vm), key=lambda one: not one.get("properties", {}).get("primary"))
    return public_ip_of(cloud, ordered[0]["id"]) if ordered else None


# What VMs do with NICs


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
    for place, item in enumerate(network_fields.items(properties, "ipConfigurations", "properties")):
        inner = dict(section(item, "properties"))
        described = section(inner, "publicIPAddressConfiguration")
        inner.pop("publicIPAddressConfiguration", None)
        if described:
            path = f"properties.ipConfigurations[{place}].publicIPAddressConfiguration"
            address_name = network_fields.text(described, "name", path) or ""
            public_ip_id = _create_inline_public_ip(cloud, group, location, address_name, described)
            option = network_fields.text(section(described, "properties"), "deleteOption", f"{path}.properties")
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
        if option == "Delete" and not users_of(cloud, public_ip_id) and not keeps(cloud, public_ip_id):
            cloud.store.delete(public_ip_id)


def public_ip_of(cloud: Cloud, nic_id: str) -> str | None:
    """Return the public address of a NIC's primary configuration."""
    configuration = nics.primary_configuration(cloud.store.get(nic_id))
    reference = configuration.get("publicIPAddress", {}).get("id")
    address = cloud.store.get(reference) if reference else None
    return address.properties.get("ipAddress") if address else None


def _wanted(cloud: Cloud, group: str, location: str, kind: Kind, name: str) -> tuple[str, Resource | None]:
    wanted = str(ResourceId(cloud.subscription, group, "Microsoft.Network", ((kind.type, name),)))
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
