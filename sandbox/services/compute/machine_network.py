"""The `networkProfile` of a machine: interfaces that are there, and those made with it."""

from __future__ import annotations

import uuid
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import Size
from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_parameter
from gpuinfra.sandbox.kernel.ids import key, parse_id
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import section
from gpuinfra.sandbox.services.compute.machine_errors import boolean, choice, invalid_value, required, text
from gpuinfra.sandbox.services.network.machine_side import (
    attach_interface,
    create_inline_interface,
    delete_address,
    delete_interface,
    detach_interface,
    public_address_of,
)

INTERFACES = "Microsoft.Network/networkInterfaces"


def read_network(call: Call, machine_id: str, location: str, size: Size, properties: dict[str, Any]) -> dict[str, Any]:
    """Check the interfaces of a machine and make those that are described inline. The profile as it is shown."""
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
    _check_count(machine_id, size, references or inline)
    if inline:
        if not text(profile.get("networkApiVersion"), "networkApiVersion"):
            raise required("networkProfile.networkApiVersion")
        shown = [_made(call, machine_id, location, one) for one in inline]
    else:
        shown = [_referred(call.cloud, machine_id, location, one) for one in references]
    if len({key(one["id"]) for one in shown}) < len(shown):
        raise invalid_parameter("networkInterfaces", "A network interface is there more than once.")
    return {"networkInterfaces": shown}


def _check_count(machine_id: str, size: Size, interfaces: list[dict[str, Any]]) -> None:
    if not interfaces:
        raise required("networkProfile.networkInterfaces")
    if len(interfaces) > size.nics:
        raise ArmError(
            400,
            "NetworkInterfaceCountExceeded",
            f"The number of network interfaces for virtual machine {parse_id(machine_id).name} exceeds the maximum "
            f"allowed for the virtual machine size {size.name}. The number of network interfaces is {len(interfaces)} "
            f"and the maximum allowed is {size.nics}.",
        )
    primary = [one for one in interfaces if section(one, "properties").get("primary")]
    if len(interfaces) > 1 and len(primary) != 1:
        raise ArmError(
            400,
            "VirtualMachineMustHaveOneNetworkInterfaceAsPrimary",
            f"Virtual machine {machine_id} must have one network interface set as the primary.",
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


def _referred(cloud: Cloud, machine_id: str, location: str, given: dict[str, Any]) -> dict[str, Any]:
    interface_id = text(given.get("id"), "networkInterfaces.id")
    if not interface_id:
        raise required("networkInterfaces.id")
    interface = cloud.store.get(interface_id)
    if interface is None or interface.type.lower() != INTERFACES.lower() or interface.location != location:
        raise ArmError(
            400,
            "InvalidResourceReference",
            f"Resource {interface_id} referenced by resource {machine_id} was not found. Please make sure that the "
            "referenced resource exists, and that both resources are in the same region.",
            details=[],
        )
    return {"id": interface.id, **_options(given)}


def _made(call: Call, machine_id: str, location: str, given: dict[str, Any]) -> dict[str, Any]:
    name = text(given.get("name"), "networkInterfaceConfigurations.name")
    if not name:
        raise required("networkInterfaceConfigurations.name")
    options = _options(given)
    group = parse_id(machine_id).group
    made = create_inline_interface(call.cloud, call, group, location, f"{name}-{uuid.uuid4().hex[:8]}", given)
    return {"id": made, **options}


def _interfaces(machine: Resource) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = machine.properties.get("networkProfile", {}).get("networkInterfaces", [])
    return found


def attach_interfaces(cloud: Cloud, machine: Resource) -> None:
    """The machine has its interfaces."""
    alone = len(_interfaces(machine)) == 1
    for one in _interfaces(machine):
        primary = alone or bool(one.get("properties", {}).get("primary"))
        attach_interface(cloud, one["id"], machine.id, primary=primary)


def change_interfaces(cloud: Cloud, machine: Resource, profile: dict[str, Any]) -> None:
    """Other interfaces than before."""
    wanted = {key(one["id"]) for one in profile["networkInterfaces"]}
    for one in _interfaces(machine):
        if key(one["id"]) not in wanted:
            detach_interface(cloud, one["id"])
    machine.properties["networkProfile"] = profile
    attach_interfaces(cloud, machine)


def release_interfaces(cloud: Cloud, machine: Resource) -> None:
    """The machine goes: its interfaces and their addresses go with it, or stay, as they were told to."""
    for one in _interfaces(machine):
        if one.get("properties", {}).get("deleteOption") != "Delete":
            detach_interface(cloud, one["id"])
            continue
        addresses = _addresses_to_delete(cloud, one["id"])
        delete_interface(cloud, one["id"])
        for address in addresses:
            delete_address(cloud, address)


def _addresses_to_delete(cloud: Cloud, interface_id: str) -> list[str]:
    interface = cloud.store.get(interface_id)
    found = []
    for configuration in interface.properties.get("ipConfigurations", []) if interface else []:
        reference = configuration.get("properties", {}).get("publicIPAddress", {})
        address = cloud.store.get(reference["id"]) if "id" in reference else None
        option = reference.get("properties", {}).get("deleteOption")
        if address and (option or address.properties.get("deleteOption")) == "Delete":
            found.append(address.id)
    return found


def address_of(cloud: Cloud, machine: Resource) -> str | None:
    """The public address of the primary interface."""
    interfaces = sorted(_interfaces(machine), key=lambda one: not one.get("properties", {}).get("primary"))
    return public_address_of(cloud, interfaces[0]["id"]) if interfaces else None
