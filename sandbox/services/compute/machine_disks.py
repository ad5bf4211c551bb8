"""What happens to the disks of a machine as it comes, works and goes."""

from __future__ import annotations

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.ids import parse_id
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.compute.disk_body import DiskPlan, new_disk
from gpuinfra.sandbox.services.compute.disks import attach_disk, detach_disk, remove_disk
from gpuinfra.sandbox.services.compute.machine_security import TRUSTED, has_trusted_launch


def make_disks(cloud: Cloud, machine: Resource, plans: list[DiskPlan]) -> None:
    """Make the new disks of a machine, and let it have all of its disks."""
    for plan in plans:
        disk = new_disk(cloud.catalogue, plan, cloud.now)
        if plan.generation:
            # Users are files of the disk: a machine that gets it later has the same.
            disk.hidden["system"] = {
                "username": machine.properties["osProfile"]["adminUsername"],
                "authorizedKeys": machine.hidden["authorizedKeys"],
            }
            if has_trusted_launch(machine):
                disk.properties["securityProfile"] = {"securityType": TRUSTED}
        cloud.store.put(disk, cloud.now)
    update_disks(cloud, machine)


def update_disks(cloud: Cloud, machine: Resource) -> None:
    """Say of every disk whether its machine holds it or only has it reserved."""
    state = "Reserved" if machine.hidden.get("power") == "deallocated" else "Attached"
    for disk_id in machine.hidden.get("disks", {}).values():
        attach_disk(cloud, disk_id, machine, state)


def name_disks(machine: Resource) -> None:
    """Show names and ids of disks, which Azure does only once they are there."""
    profile, disks = machine.properties["storageProfile"], machine.hidden["disks"]
    shown = {"os": profile["osDisk"], **{str(disk["lun"]): disk for disk in profile["dataDisks"]}}
    for place, disk in shown.items():
        disk["name"] = parse_id(disks[place]).name
        disk["managedDisk"]["id"] = disks[place]


def release_disks(cloud: Cloud, machine: Resource) -> None:
    """The machine goes: its disks go with it, or stay, as they were told to."""
    profile, disks = machine.properties.get("storageProfile", {}), machine.hidden.get("disks", {})
    shown = {"os": profile.get("osDisk", {}), **{str(disk["lun"]): disk for disk in profile.get("dataDisks", [])}}
    for place, disk_id in disks.items():
        if shown.get(place, {}).get("deleteOption") == "Delete":
            remove_disk(cloud, disk_id)
        else:
            detach_disk(cloud, disk_id, machine.id)
