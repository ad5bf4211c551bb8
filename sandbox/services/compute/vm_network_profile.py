"""The `networkProfile` of a VM: existing NICs, and NICs created with it."""

import uuid
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import Size
from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_parameter
from gpuinfra.sandbox.kernel.resource_id import key, parse_id
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import section
from gpuinfra.sandbox.services.compute.fields import boolean, choice, invalid_value, required, text
from gpuinfra.sandbox.services.network.vm_nics import (
    attach_nic,
    create_inline_nic,
    delete_nic,
    detach_nic,
    public_ip_of,
)

NICS = "Microsoft.Network/networkInterfaces"


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
    if nic is None or nic.type.lower() != NICS.lower() or nic.location != location:
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
    """Delete or detach the NICs and public IPs of a VM that is deleted, as each `deleteOption` says."""
    for one in _nics(vm):
        if one.get("properties", {}).get("deleteOption") == "Delete":
            delete_nic(cloud, one["id"])
        else:
            detach_nic(cloud, one["id"])


def public_ip_of_vm(cloud: Cloud, vm: Resource) -> str | None:
    """Return the public IP of the primary NIC."""
    nics = sorted(_nics(vm), key=lambda one: not one.get("properties", {}).get("primary"))
    return public_ip_of(cloud, nics[0]["id"]) if nics else None
