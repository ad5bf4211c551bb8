"""Create a VM: every part of the body is checked before anything is created."""

import uuid
from typing import Any

from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.clock import stamp
from gpuinfra.sandbox.kernel.errors import invalid_parameter, not_modelled
from gpuinfra.sandbox.kernel.routes import parse_id
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import check_tags, section
from gpuinfra.sandbox.services.compute import vm_checks
from gpuinfra.sandbox.services.compute.disk_body import DiskPlan
from gpuinfra.sandbox.services.compute.fields import text
from gpuinfra.sandbox.services.compute.vm_identity import apply_identity
from gpuinfra.sandbox.services.compute.vm_network_profile import read_network
from gpuinfra.sandbox.services.compute.vm_os_profile import Profile, read_profile
from gpuinfra.sandbox.services.compute.vm_power_state import VIRTUAL_MACHINES
from gpuinfra.sandbox.services.compute.vm_security_profile import new_security
from gpuinfra.sandbox.services.compute.vm_storage_profile import VmContext, read_storage

_OUTSIDE = (
    "availabilitySet",
    "virtualMachineScaleSet",
    "proximityPlacementGroup",
    "host",
    "hostGroup",
    "capacityReservation",
    "applicationProfile",
)


def new_vm(call: Call, vm_id: str, location: str, body: dict[str, Any]) -> tuple[Resource, list[DiskPlan]]:
    """Return the VM that a body describes, and the disks to create for it."""
    cloud, properties = call.cloud, section(body, "properties")
    check_modelled(body)
    size = vm_checks.check_size(cloud, properties, location)
    zones = vm_checks.check_zones(cloud, body, vm_id, location, call.api_version)
    tags = check_tags(body)
    storage = read_storage(VmContext(call, vm_id, location, size, tuple(zones), tags), properties)
    plan = vm_checks.check_plan(cloud, body, vm_id, storage.image)
    vm_checks.check_generation(size, storage.generation)
    from_image = storage.image is not None
    profile = _profile(properties, vm_id, from_image=from_image)
    spot = vm_checks.read_spot(cloud, properties, size, location, "Create VM")
    security = new_security(call, vm_id, location, properties, storage.generation, from_image=from_image)
    kept = {**security, **vm_checks.check_kept(properties)}
    vm_checks.check_quota(cloud, size, location, vm_checks.is_spot(spot))
    vm = Resource(vm_id, location, {}, {**profile.secrets, **storage.system})
    vm.hidden |= {"generation": storage.generation, "disks": storage.disks}
    if user_data := text(properties.get("userData"), "userData"):
        vm.hidden["userData"] = user_data
    vm.body = {
        "name": parse_id(vm_id).name,
        "id": vm_id,
        "type": VIRTUAL_MACHINES,
        "location": location,
        "tags": tags,
        **({"zones": zones} if zones else {}),
        **({"plan": plan} if plan else {}),
    }
    vm.body["properties"] = {
        "hardwareProfile": {"vmSize": size.name},
        "provisioningState": "Creating",
        "vmId": str(uuid.uuid4()),
        **kept,
        "storageProfile": storage.shown,
        **({"osProfile": profile.shown} if profile.shown else {}),
        "networkProfile": read_network(call, vm_id, location, size, properties),
        **spot,
        "timeCreated": stamp(cloud.now),
    }
    apply_identity(cloud, vm, body)
    return vm, storage.made


def check_modelled(body: dict[str, Any]) -> None:
    """Refuse what Azure would act on and the embedded Azure would ignore."""
    properties = section(body, "properties")
    for name in _OUTSIDE:
        if properties.get(name) is not None:
            raise not_modelled(f"'{name}' of a virtual machine")
    if body.get("extendedLocation") is not None:
        raise not_modelled("'extendedLocation' of a virtual machine")


def _profile(properties: dict[str, Any], vm_id: str, *, from_image: bool) -> Profile:
    if from_image:
        return read_profile(properties, parse_id(vm_id).name)
    if properties.get("osProfile") is not None:
        raise invalid_parameter("osProfile", "Parameter 'osProfile' is not allowed.")
    return Profile({}, {"authorizedKeys": []})
