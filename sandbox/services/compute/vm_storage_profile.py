"""The `storageProfile` of a VM: its image and its disks."""

import uuid
from dataclasses import dataclass, field
from typing import Any

from gpuinfra.sandbox.catalogue.catalogue import Size
from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_parameter, not_modelled
from gpuinfra.sandbox.kernel.routes import ResourceId, key, parse_id
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import section
from gpuinfra.sandbox.services.compute import fields
from gpuinfra.sandbox.services.compute.disk_body import DISKS, DiskPlan, check_disk_size, check_sku
from gpuinfra.sandbox.services.compute.images import Image
from gpuinfra.sandbox.services.compute.vm_checks import check_image

_CACHING = ("None", "ReadOnly", "ReadWrite")
_MAX_OS_DISK_GIB = 4095


@dataclass
class Storage:
    """The profile as Azure shows it, and the disks behind it."""

    shown: dict[str, Any]
    image: Image | None
    generation: str
    made: list[DiskPlan] = field(default_factory=list)
    disks: dict[str, str] = field(default_factory=dict)
    """Ids of all disks, by `os` or the LUN of a data disk."""
    system: dict[str, Any] = field(default_factory=dict)
    """The admin user and keys on an OS disk that is attached."""


@dataclass(frozen=True)
class VmContext:
    """The VM that the disks are for."""

    call: Call
    vm_id: str
    location: str
    size: Size
    zones: tuple[str, ...]
    tags: dict[str, str]

    @property
    def cloud(self) -> Cloud:
        return self.call.cloud

    def disk_id(self, name: str) -> str:
        parsed = parse_id(self.vm_id)
        return str(ResourceId(parsed.subscription, parsed.group, parsed.namespace, (("disks", name),)))


def read_storage(context: VmContext, properties: dict[str, Any]) -> Storage:
    """Check image and disks of a new VM."""
    if properties.get("storageProfile") is None:
        raise fields.required("storageProfile")
    profile = section(properties, "storageProfile")
    if profile.get("osDisk") is None:
        raise fields.required("osDisk")
    disk = section(profile, "osDisk")
    option = fields.choice(disk.get("createOption"), "osDisk.createOption", ("FromImage", "Attach", "Empty", "Copy"))
    if option is None:
        raise fields.required("osDisk.createOption")
    if disk.get("vhd") is not None or disk.get("diffDiskSettings") is not None:
        raise not_modelled("unmanaged and ephemeral disks")
    if option == "Attach":
        storage = _attached_os_disk(context, disk)
    elif option == "FromImage":
        storage = _new_os_disk(context, section(profile, "imageReference"), disk)
    else:
        raise fields.invalid_value("osDisk.createOption")
    storage.shown["dataDisks"] = []
    for given in read_data_disks(context, profile):
        add_data_disk(context, storage, given)
    return storage


def _new_os_disk(context: VmContext, reference: dict[str, Any], disk: dict[str, Any]) -> Storage:
    if not reference:
        raise fields.required("imageReference")
    image = check_image(reference, context.location)
    size = image.size_gib
    if disk.get("diskSizeGB") is not None:
        size = check_disk_size(disk["diskSizeGB"], "osDisk.diskSizeGB")
        if size > _MAX_OS_DISK_GIB:
            raise invalid_parameter("osDisk.diskSizeGB", f"An OS disk has at most {_MAX_OS_DISK_GIB} GB.")
        if size < image.size_gib:
            raise fields.not_allowed(
                f"The specified disk size {size} GB is smaller than the size of the corresponding disk in the VM "
                f"image: {image.size_gib} GB. This is not allowed. Please choose equal or greater size or do not "
                "specify an explicit size.",
                "osDisk.diskSizeGB",
            )
    name = fields.text(disk.get("name"), "osDisk.name")
    disk_name = name or f"{parse_id(context.vm_id).name}_OsDisk_1_{uuid.uuid4().hex}"
    sku = _sku(context, disk, "osDisk")
    source = (
        f"/Subscriptions/{context.cloud.subscription}/Providers/Microsoft.Compute/Locations/{context.location}/Publishers/"
        f"{image.publisher}/ArtifactTypes/VMImage/Offers/{image.offer}/Skus/{image.sku}/Versions/{image.version}"
    )
    plan = _plan(
        context,
        disk_name,
        sku,
        size,
        {"createOption": "FromImage", "imageReference": {"id": source}},
        generation=image.generation,
    )
    shown = {
        "imageReference": {
            "publisher": reference["publisher"],
            "offer": reference["offer"],
            "sku": reference["sku"],
            "version": reference["version"],
            "exactVersion": image.version,
        },
        "osDisk": _shown(disk, name, "FromImage", sku, size, system=True),
    }
    return Storage(shown, image, image.generation, [plan], {"os": plan.id})


def _attached_os_disk(context: VmContext, given: dict[str, Any]) -> Storage:
    disk = _existing(context, given, "osDisk")
    if "osType" not in disk.properties:
        raise invalid_parameter("osDisk", f"The disk {disk.id} has no operating system and cannot be an OS disk.")
    shown = _shown(given, disk.name, "Attach", disk.body["sku"]["name"], disk.properties["diskSizeGB"], system=True)
    return Storage(
        {"osDisk": shown}, None, disk.properties["hyperVGeneration"], [], {"os": disk.id}, disk.hidden.get("system", {})
    )


def read_data_disks(context: VmContext, profile: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of `dataDisks`, each with its own LUN."""
    given: list[dict[str, Any]] = section(profile, "dataDisks", list)
    most = context.size.data_disks
    if len(given) > most:
        message = f"The maximum number of data disks allowed to be attached to a VM of this size is {most}."
        raise fields.not_allowed(message, "dataDisks")
    numbers: set[int] = set()
    for disk in given:
        number = disk.get("lun") if isinstance(disk, dict) else None
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 64:
            raise fields.invalid_value("dataDisk.lun")
        if number in numbers:
            raise invalid_parameter("dataDisks", f"A disk at LUN {number} already exists.")
        numbers.add(number)
    return given


def add_data_disk(context: VmContext, storage: Storage, given: dict[str, Any]) -> None:
    """Add a data disk, a new or an existing one."""
    option = fields.choice(given.get("createOption"), "dataDisk.createOption", ("Empty", "Attach", "FromImage", "Copy"))
    if option is None:
        raise fields.required("dataDisk.createOption")
    number = given["lun"]
    if option == "Attach":
        disk = _existing(context, given, "dataDisk")
        disk_id, name = disk.id, disk.name
        sku, size = disk.body["sku"]["name"], disk.properties["diskSizeGB"]
    elif option == "Empty":
        if given.get("diskSizeGB") is None:
            raise fields.required("dataDisk.diskSizeGB")
        sku, size = _sku(context, given, "dataDisk"), check_disk_size(given["diskSizeGB"], "dataDisk.diskSizeGB")
        name = fields.text(given.get("name"), "dataDisk.name") or ""
        disk_name = name or f"{parse_id(context.vm_id).name}_disk{number + 2}_{uuid.uuid4().hex}"
        plan = _plan(context, disk_name, sku, size, {"createOption": "Empty"})
        storage.made.append(plan)
        disk_id = plan.id
    else:
        raise invalid_parameter("dataDisk.createOption", f"The image has no data disk for LUN {number}.")
    if key(disk_id) in {key(other) for other in storage.disks.values()}:
        raise invalid_parameter("dataDisks", f"The disk {disk_id} is there more than once.")
    storage.disks[str(number)] = disk_id
    storage.shown["dataDisks"].append({"lun": number, **_shown(given, name or None, option, sku, size, system=False)})


def _shown(disk: dict[str, Any], name: str | None, option: str, sku: str, size: int, *, system: bool) -> dict[str, Any]:
    """Return a disk as the VM shows it. Name and id follow once it exists."""
    where = "osDisk" if system else "dataDisk"
    caching = fields.choice(disk.get("caching"), f"{where}.caching", _CACHING) or ("ReadWrite" if system else "None")
    shown: dict[str, Any] = {"osType": "Linux"} if system else {}
    if name:
        shown["name"] = name
    shown |= {
        "createOption": option,
        "caching": caching,
        "managedDisk": {"storageAccountType": sku},
        "deleteOption": fields.choice(disk.get("deleteOption"), f"{where}.deleteOption", ("Detach", "Delete"))
        or "Detach",
        "diskSizeGB": size,
    }
    if not system:
        shown["toBeDetached"] = fields.boolean(disk.get("toBeDetached"), "dataDisk.toBeDetached", False)
    return shown


def _sku(context: VmContext, disk: dict[str, Any], where: str) -> str:
    # Every size in the catalogue has premium storage, which is then Azure's default.
    given = section(disk, "managedDisk").get("storageAccountType")
    return check_sku(context.cloud.catalogue, given, f"{where}.managedDisk.storageAccountType", "Premium_LRS")


def _plan(
    context: VmContext, name: str, sku: str, size: int, creation: dict[str, Any], generation: str | None = None
) -> DiskPlan:
    fields.check_entity_name(name, "diskName")
    disk_id = context.disk_id(name)
    if context.cloud.store.get(disk_id) is not None:
        raise ArmError(
            409,
            "ConflictingUserInput",
            f"Disk {name} already exists in resource group {parse_id(disk_id).group.upper()}. Only CreateOption.Attach "
            "is supported.",
            target=disk_id,
        )
    return DiskPlan(disk_id, context.location, sku, size, creation, context.tags, context.zones, generation)


def _existing(context: VmContext, given: dict[str, Any], where: str) -> Resource:
    """Return a disk that exists and is unattached."""
    name = f"{where}.managedDisk.id"
    disk_id = fields.text(section(given, "managedDisk").get("id"), name)
    if not disk_id:
        raise fields.required(name)
    try:
        disk = context.cloud.store.get(disk_id) if parse_id(disk_id).type.lower() == DISKS.lower() else None
    except ValueError:
        raise fields.invalid_value(name) from None
    if disk is None or disk.location != context.location:
        raise ArmError(404, "NotFound", f"Disk {disk_id} is not found.", target=name)
    owner = disk.body.get("managedBy")
    if owner and key(owner) != key(context.vm_id):
        raise ArmError(
            409,
            "ConflictingUserInput",
            f"Disk '{disk.id}' cannot be attached as the disk is already owned by VM '{owner}'.",
            target=disk.id,
        )
    return disk
