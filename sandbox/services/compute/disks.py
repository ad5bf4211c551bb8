"""Managed disks, by themselves and as disks of a VM."""

from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.clock import stamp
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_parameter, not_modelled
from gpuinfra.sandbox.kernel.locks import keeps
from gpuinfra.sandbox.kernel.routes import GROUP, Service, key, parse_id
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services import common
from gpuinfra.sandbox.services.compute import fields
from gpuinfra.sandbox.services.compute.disk_body import DISKS, DiskPlan, check_disk_size, check_sku, new_disk, resize
from gpuinfra.sandbox.services.compute.vm_security_profile import TRUSTED, has_trusted_launch

service = Service()

_DISK = f"{GROUP}/providers/{DISKS}/{{name}}"
common.add_reads(service, DISKS)


@service.route("PUT", _DISK)
def _put_disk(call: Call) -> Answer:
    fields.check_entity_name(call["name"], "diskName")
    body, existing, location = common.check_put(call, DISKS)
    if existing is None:
        plan = _plan(call, common.resource_id(call, DISKS), location, body)
        return _begin_put(call, new_disk(call.cloud.catalogue, plan, call.cloud.now))
    return _begin_put(call, _changed(call, existing, body))


@service.route("PATCH", _DISK)
def _patch_disk(call: Call) -> Answer:
    common.require_group(call, for_write=True)
    body = common.require_object(call)
    existing = common.require_resource(call, DISKS)
    common.check_conditions(call, existing)
    return _begin_put(call, _changed(call, existing, body))


def _plan(call: Call, disk_id: str, location: str, body: dict[str, Any]) -> DiskPlan:
    catalogue, properties = call.cloud.catalogue, common.section(body, "properties")
    creation = common.section(properties, "creationData")
    option = creation.get("createOption")
    if option is None:
        raise fields.required("disk.creationData.createOption")
    if not isinstance(option, str) or option.lower() != "empty":
        raise not_modelled(f"a disk that is made by '{option}'")
    zones = common.section(body, "zones", list)
    if any(zone not in catalogue.zones(location) for zone in zones):
        raise invalid_parameter("zones", f"The zones of the disk '{call['name']}' are not in the region '{location}'.")
    return DiskPlan(
        disk_id,
        location,
        check_sku(catalogue, common.section(body, "sku").get("name"), "sku", "Standard_LRS"),
        check_disk_size(properties.get("diskSizeGB"), "disk.diskSizeGB"),
        {"createOption": "Empty"},
        common.check_tags(body),
        tuple(zones),
    )


def _changed(call: Call, disk: Resource, body: dict[str, Any]) -> Resource:
    if "tags" in body:
        disk.body["tags"] = common.check_tags(body)
    properties = common.section(body, "properties")
    catalogue, present, size = call.cloud.catalogue, disk.properties["diskSizeGB"], properties.get("diskSizeGB")
    sku = check_sku(catalogue, common.section(body, "sku").get("name"), "sku", disk.body["sku"]["name"])
    size_gib = present if size is None else check_disk_size(size, "disk.diskSizeGB")
    if (sku, size_gib) != (disk.body["sku"]["name"], present):
        _check_not_in_use(disk, sku, size_gib)
        resize(catalogue, disk, sku=sku, size_gib=size_gib)
        _update_vm_of(call.cloud, disk)
    return disk


def _check_not_in_use(disk: Resource, sku: str, size_gib: int) -> None:
    """Raise if a change needs a deallocated VM. While it is allocated, only the size of data disks can change."""
    if disk.properties["diskState"] != "Attached":
        return
    running = f"while it is attached to running VM {disk.body['managedBy']}."
    rest = "requires the virtual machine to be deallocated. Please stop your VM and retry the operation."
    if size_gib != disk.properties["diskSizeGB"] and "osType" in disk.properties:
        message = f"Cannot resize disk {disk.name} {running} Resizing a disk of an Azure Virtual Machine {rest}"
        raise fields.not_allowed(message, "diskSizeGB")
    if sku != disk.body["sku"]["name"]:
        message = f"Cannot change the account type of disk {disk.name} {running} Changing the type of a disk {rest}"
        raise fields.not_allowed(message, "sku")


def _update_vm_of(cloud: Cloud, disk: Resource) -> None:
    """Update the SKU and size that the disk's VM shows."""
    vm = cloud.store.get(disk.body["managedBy"]) if "managedBy" in disk.body else None
    if vm is None:
        return
    profile = vm.properties["storageProfile"]
    for shown in (profile["osDisk"], *profile["dataDisks"]):
        if key(shown["managedDisk"].get("id", "")) == disk.key:
            shown["diskSizeGB"] = disk.properties["diskSizeGB"]
            shown["managedDisk"]["storageAccountType"] = disk.body["sku"]["name"]
    cloud.store.put(vm, cloud.now)


def _begin_put(call: Call, disk: Resource) -> Answer:
    disk.properties["provisioningState"] = "Updating"
    cloud = call.cloud
    cloud.store.put(disk, cloud.now)
    operation = cloud.operations.begin(call, disk, "write", latency="disk-put", retry_after=(2, 2))
    return cloud.operations.accepted(call, operation, disk.body)


@service.effect("disk-put")
def _finish_put(cloud: Cloud, payload: dict[str, Any]) -> None:
    disk = cloud.store.get(payload["id"])
    if disk is not None:
        disk.properties["provisioningState"] = "Failed" if "failure" in payload else "Succeeded"
        cloud.store.put(disk, cloud.now)


@service.route("DELETE", _DISK)
def _delete_disk(call: Call) -> Answer:
    disk = common.find_to_delete(call, DISKS)
    if disk is None:
        return Answer(204)
    owner = disk.body.get("managedBy")
    if owner:
        raise ArmError(409, "OperationNotAllowed", f"Disk {disk.name} is attached to VM {owner}.")
    operation = call.cloud.operations.begin(call, disk, "delete", latency="disk-delete")
    return call.cloud.operations.accepted(call, operation)


@service.effect("disk-delete")
def finish_delete(cloud: Cloud, payload: dict[str, Any]) -> None:
    """Delete the disk, unless a VM has attached it in the meantime."""
    disk = cloud.store.get(payload["id"])
    if disk is None or "failure" in payload:
        return
    if owner := disk.body.get("managedBy"):
        raise ArmError(409, "OperationNotAllowed", f"Disk {disk.name} is attached to VM {owner}.")
    remove_disk(cloud, disk.id)


# For VMs


def attach_disk(cloud: Cloud, disk_id: str, vm: Resource, state: str) -> None:
    """Attach the disk to the VM; `state` is Attached, or Reserved while the VM is deallocated."""
    disk = cloud.store.get(disk_id)
    if disk is None:
        return
    _set_ownership(cloud, disk, state, vm.id)
    if "osType" in disk.properties:
        # A guest's files belong to its OS disk, not to its VM.
        disk.hidden["guest"] = {"vm": vm.id, "vmId": vm.properties["vmId"]}
    cloud.store.put(disk, cloud.now)


def detach_disk(cloud: Cloud, disk_id: str, vm_id: str) -> None:
    """Detach the disk, if this VM has it."""
    disk = cloud.store.get(disk_id)
    if disk is None or key(str(disk.body.get("managedBy", ""))) != key(vm_id):
        return
    _set_ownership(cloud, disk, "Unattached", None)
    cloud.store.put(disk, cloud.now)


def _set_ownership(cloud: Cloud, disk: Resource, state: str, owner: str | None) -> None:
    """Set who uses the disk, and when that last changed: at an attachment, a detachment, a start, a deallocation."""
    if (disk.properties["diskState"], disk.body.get("managedBy")) == (state, owner):
        return
    disk.properties.update({"diskState": state, "LastOwnershipUpdateTime": stamp(cloud.now)})
    if owner:
        disk.body["managedBy"] = owner
    else:
        del disk.body["managedBy"]


def remove_disk(cloud: Cloud, disk_id: str) -> None:
    """Delete the disk; with an OS disk, delete the guest's files too."""
    disk = cloud.store.get(disk_id)
    if disk is None:
        return
    if "guest" in disk.hidden:
        cloud.guest_orders.append({"kind": "delete", **disk.hidden["guest"]})
    cloud.store.delete(disk.id)


def make_disks(cloud: Cloud, vm: Resource, plans: list[DiskPlan]) -> None:
    """Create the new disks of a VM and attach all of its disks."""
    for plan in plans:
        disk = new_disk(cloud.catalogue, plan, cloud.now)
        if plan.generation:
            # Users are files on the disk: a VM that attaches it later has the same users.
            disk.hidden["system"] = {
                "username": vm.properties["osProfile"]["adminUsername"],
                "authorizedKeys": vm.hidden["authorizedKeys"],
            }
            if has_trusted_launch(vm):
                disk.properties["securityProfile"] = {"securityType": TRUSTED}
        cloud.store.put(disk, cloud.now)
    update_disks(cloud, vm)


def update_disks(cloud: Cloud, vm: Resource) -> None:
    """Mark every disk of the VM as attached, or as reserved while the VM is deallocated."""
    state = "Reserved" if vm.hidden.get("power") == "deallocated" else "Attached"
    for disk_id in vm.hidden.get("disks", {}).values():
        attach_disk(cloud, disk_id, vm, state)


def name_disks(vm: Resource) -> None:
    """Show names and ids of disks, which Azure does only once they exist."""
    disks = vm.hidden["disks"]
    for place, disk in _shown_disks(vm).items():
        disk["name"] = parse_id(disks[place]).name
        disk["managedDisk"]["id"] = disks[place]


def _shown_disks(vm: Resource) -> dict[str, dict[str, Any]]:
    """Return the disks in a VM's body, by `os` or the LUN of a data disk."""
    profile = vm.properties.get("storageProfile", {})
    return {"os": profile.get("osDisk", {}), **{str(disk["lun"]): disk for disk in profile.get("dataDisks", [])}}


def release_disks(cloud: Cloud, vm: Resource) -> None:
    """Delete or detach the disks of a VM that is deleted, as each `deleteOption` says. A locked one is detached."""
    shown = _shown_disks(vm)
    for place, disk_id in vm.hidden.get("disks", {}).items():
        if shown.get(place, {}).get("deleteOption") == "Delete" and not keeps(cloud, disk_id):
            remove_disk(cloud, disk_id)
        else:
            detach_disk(cloud, disk_id, vm.id)
