"""Change a VM: what a PUT or PATCH may change, and in which power state."""

from dataclasses import dataclass, field
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import Size
from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.routes import key, parse_id
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import check_tags, section
from gpuinfra.sandbox.services.compute import vm_checks
from gpuinfra.sandbox.services.compute.disk_body import DiskPlan, check_disk_size, resize
from gpuinfra.sandbox.services.compute.disks import detach_disk
from gpuinfra.sandbox.services.compute.fields import change_not_allowed, choice, not_allowed, text
from gpuinfra.sandbox.services.compute.vm_create import check_modelled
from gpuinfra.sandbox.services.compute.vm_identity import apply_identity
from gpuinfra.sandbox.services.compute.vm_network_profile import change_nics, read_network
from gpuinfra.sandbox.services.compute.vm_power_state import DEALLOCATED, state_of
from gpuinfra.sandbox.services.compute.vm_security_profile import change_security
from gpuinfra.sandbox.services.compute.vm_storage_profile import Storage, VmContext, add_data_disk, read_data_disks


@dataclass
class Change:
    """What has to happen when the operation ends."""

    resized: bool = False
    made: list[DiskPlan] = field(default_factory=list)


def change_vm(call: Call, vm: Resource, body: dict[str, Any]) -> Change:
    """Apply a PUT or PATCH to an existing VM. Fields that the body omits stay unchanged."""
    check_modelled(body)
    properties = section(body, "properties")
    change = Change()
    _check_unchanged(vm, body)
    _check_profile(vm, section(properties, "osProfile"))
    size = _change_size(call, vm, properties, change)
    _change_spot(call, vm, properties, size)
    if "tags" in body:
        vm.body["tags"] = check_tags(body)
    apply_identity(call.cloud, vm, body)
    change_security(vm, properties, is_deallocated=state_of(vm) == DEALLOCATED)
    vm.properties.update(vm_checks.check_kept(properties))
    if (user_data := text(properties.get("userData"), "userData")) is not None:
        vm.hidden["userData"] = user_data
    _change_storage(call, vm, properties, size, change)
    _change_network(call, vm, properties, size)
    return change


def _check_unchanged(vm: Resource, body: dict[str, Any]) -> None:
    zones = body.get("zones")
    if zones is not None and zones != vm.body.get("zones", []):
        raise change_not_allowed("zones")
    plan = section(body, "plan")
    present = section(vm.body, "plan")
    if any(value is not None and value != present.get(name) for name, value in plan.items() if name != "promotionCode"):
        raise change_not_allowed("plan")


def _check_profile(vm: Resource, profile: dict[str, Any]) -> None:
    """Raise if users, keys or custom data change, which are fixed at the first boot."""
    present = vm.properties.get("osProfile", {})
    for name in ("computerName", "adminUsername"):
        if profile.get(name) is not None and profile[name] != present.get(name):
            raise change_not_allowed(name)
    for name in ("adminPassword", "customData"):
        if profile.get(name) is not None and profile[name] != vm.hidden.get(name):
            raise change_not_allowed(name)
    given = section(section(profile, "linuxConfiguration"), "ssh").get("publicKeys")
    keys = {item["keyData"].strip() for item in _public_keys(present)}
    if given is not None and (
        not isinstance(given, list)
        or {str(item.get("keyData", "")).strip() if isinstance(item, dict) else "" for item in given} != keys
    ):
        raise change_not_allowed("linuxConfiguration.ssh.publicKeys")


def _public_keys(profile: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = profile.get("linuxConfiguration", {}).get("ssh", {}).get("publicKeys", [])
    return found


def _change_size(call: Call, vm: Resource, properties: dict[str, Any], change: Change) -> Size:
    cloud, present = call.cloud, vm.properties["hardwareProfile"]["vmSize"]
    before = cloud.catalogue.size(present)
    given = section(properties, "hardwareProfile").get("vmSize")
    again = bool(vm.hidden.get("neverAllocated"))
    if before is None or (given is not None and (not isinstance(given, str) or given.lower() != present.lower())):
        size = vm_checks.check_size(cloud, properties, vm.location)
        vm_checks.check_generation(size, vm.hidden.get("generation", "V1"))
        disks = vm.properties["storageProfile"]["dataDisks"]
        nics = vm.properties["networkProfile"]["networkInterfaces"]
        if len(disks) > size.data_disks or len(nics) > size.nics:
            raise not_allowed(
                f"Unable to resize the VM '{vm.name}' to '{size.name}': it has more disks or network interfaces "
                "than that size takes.",
                "vmSize",
            )
        change.resized = True
    else:
        size = before
        if not again:
            return size
        vm_checks.check_size(cloud, vm.properties, vm.location)
    _check_quota(call, vm, before, size)
    vm.properties["hardwareProfile"] = {"vmSize": size.name}
    return size


def _check_quota(call: Call, vm: Resource, before: Size | None, size: Size) -> None:
    spot = vm_checks.is_spot(vm.properties)
    counted = spot or state_of(vm) != DEALLOCATED
    if counted or vm.hidden.get("neverAllocated"):
        freed = (before, spot) if before and counted else None
        vm_checks.check_quota(call.cloud, size, vm.location, spot, freed)


def _change_spot(call: Call, vm: Resource, given: dict[str, Any], size: Size) -> None:
    names = ("priority", "evictionPolicy", "billingProfile")
    wanted = {name: given[name] for name in names if given.get(name) is not None}
    if not wanted:
        return
    present = {name: vm.properties[name] for name in names if name in vm.properties}
    priority = choice(wanted.get("priority"), "priority", ("Regular", "Spot", "Low"))
    if priority and vm_checks.is_spot({"priority": priority}) != vm_checks.is_spot(present):
        if not vm_checks.is_spot(present):
            raise ArmError(
                409,
                "VMPriorityCannotBeApplied",
                f"The priority value '{priority}' cannot be applied to the Virtual Machine '{vm.name}' since no "
                "priority was specified when the Virtual Machine was created.",
            )
        raise change_not_allowed("priority")
    spot = vm_checks.read_spot(call.cloud, {**present, **wanted}, size, vm.location, "Update VM")
    if spot.get("evictionPolicy") != present.get("evictionPolicy"):
        raise change_not_allowed("evictionPolicy")
    if spot.get("billingProfile") != present.get("billingProfile") and state_of(vm) != DEALLOCATED:
        raise ArmError(
            409,
            "MaxPriceChangeNotAllowedForAllocatedVMs",
            f"Max price change is not allowed when the VM '{vm.name}' is currently allocated. Please deallocate "
            "and try again.",
        )
    vm.properties.update(spot)


def _change_storage(call: Call, vm: Resource, properties: dict[str, Any], size: Size, change: Change) -> None:
    profile, present = section(properties, "storageProfile"), vm.properties["storageProfile"]
    _check_image(section(profile, "imageReference"), present.get("imageReference", {}))
    _change_system_disk(call, vm, section(profile, "osDisk"))
    if profile.get("dataDisks") is None:
        return
    zones = tuple(vm.body.get("zones", ()))
    context = VmContext(call, vm.id, vm.location, size, zones, vm.body.get("tags", {}))
    given = read_data_disks(context, profile)
    kept = {disk["lun"]: disk for disk in present["dataDisks"]}
    disks = vm.hidden["disks"]
    storage = Storage({"dataDisks": []}, None, "", [], {"os": disks["os"]})
    for disk in given:
        number, shown = disk["lun"], kept.get(disk["lun"])
        if disk.get("toBeDetached") is True:
            continue
        if shown and _is_same(disk, disks[str(number)]):
            option = choice(disk.get("deleteOption"), "dataDisk.deleteOption", ("Detach", "Delete"))
            storage.shown["dataDisks"].append({**shown, "deleteOption": option or shown["deleteOption"]})
            storage.disks[str(number)] = disks[str(number)]
        else:
            add_data_disk(context, storage, disk)
    for number, disk_id in disks.items():
        if number != "os" and disk_id not in storage.disks.values():
            detach_disk(call.cloud, disk_id, vm.id)
    present["dataDisks"] = storage.shown["dataDisks"]
    vm.hidden["disks"] = storage.disks
    change.made += storage.made


def _is_same(given: dict[str, Any], disk_id: str) -> bool:
    name = text(given.get("name"), "dataDisk.name")
    wanted = text(section(given, "managedDisk").get("id"), "dataDisk.managedDisk.id")
    return (not wanted or key(wanted) == key(disk_id)) and (not name or name.lower() == parse_id(disk_id).name.lower())


def _check_image(given: dict[str, Any], present: dict[str, Any]) -> None:
    for name in ("publisher", "offer", "sku", "version"):
        value = text(given.get(name), f"imageReference.{name}")
        allowed = {str(present.get(name, "")).lower()}
        if name == "version":
            allowed.add(str(present.get("exactVersion", "")).lower())
        if value and value.lower() not in allowed:
            raise change_not_allowed("imageReference")


def _change_system_disk(call: Call, vm: Resource, given: dict[str, Any]) -> None:
    present, disk_id = vm.properties["storageProfile"]["osDisk"], vm.hidden["disks"]["os"]
    name = text(given.get("name"), "osDisk.name")
    if name and name.lower() != parse_id(disk_id).name.lower():
        raise change_not_allowed("osDisk.name")
    option = text(given.get("createOption"), "osDisk.createOption")
    if option and option.lower() != present["createOption"].lower():
        raise change_not_allowed("osDisk.createOption")
    managed = text(section(given, "managedDisk").get("id"), "osDisk.managedDisk.id")
    if managed and key(managed) != key(disk_id):
        raise change_not_allowed("osDisk.managedDisk.id")
    kind = text(section(given, "managedDisk").get("storageAccountType"), "osDisk.managedDisk.storageAccountType")
    if kind and kind.lower() != str(present["managedDisk"].get("storageAccountType", "")).lower():
        raise not_allowed(
            f"Managed disk storage account type change through Virtual Machine '{vm.name}' is not allowed. Please "
            f"update disk resource at {disk_id}.",
            "osDisk.managedDisk.storageAccountType",
        )
    if given.get("diskSizeGB") is not None:
        _grow(call, vm, check_disk_size(given["diskSizeGB"], "osDisk.diskSizeGB"))
    caching = choice(given.get("caching"), "osDisk.caching", ("None", "ReadOnly", "ReadWrite"))
    at_delete = choice(given.get("deleteOption"), "osDisk.deleteOption", ("Detach", "Delete"))
    present["caching"] = caching or present["caching"]
    present["deleteOption"] = at_delete or present["deleteOption"]


def _grow(call: Call, vm: Resource, size_gib: int) -> None:
    present, disk = vm.properties["storageProfile"]["osDisk"], call.cloud.store.get(vm.hidden["disks"]["os"])
    if disk is None or size_gib == present["diskSizeGB"]:
        return
    if state_of(vm) != DEALLOCATED:
        raise not_allowed(
            "Resizing the OS disk is allowed only when creating a VM or when the VM is deallocated.",
            "osDisk.diskSizeGB",
        )
    resize(call.cloud.catalogue, disk, sku=disk.body["sku"]["name"], size_gib=size_gib)
    call.cloud.store.put(disk, call.cloud.now)
    present["diskSizeGB"] = size_gib


def _change_network(call: Call, vm: Resource, properties: dict[str, Any], size: Size) -> None:
    profile = section(properties, "networkProfile")
    # NICs that were created with the VM are not created again by the same request.
    if profile.get("networkInterfaces") is None:
        return
    present = vm.properties["networkProfile"]
    wanted = read_network(call, vm.id, vm.location, size, properties)
    before = {key(one["id"]) for one in present["networkInterfaces"]}
    if {key(one["id"]) for one in wanted["networkInterfaces"]} != before and state_of(vm) != DEALLOCATED:
        raise not_allowed(
            f"Network interfaces of the VM '{vm.name}' can be changed only while it is deallocated.",
            "networkProfile.networkInterfaces",
        )
    change_nics(call.cloud, vm, wanted)
