"""What tells a VM apart from others that had, or get, the same Azure id. All pure."""

from __future__ import annotations

from typing import Any

from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import refers_to


def vm_id_of(machine: ObservedResource) -> str:
    """Return Azure's `vmId`; a VM that is created again gets another one."""
    return str(machine.properties.get("vmId") or "")


def vm_id_without_older_disk(machine: ObservedResource, disk: ObservedResource | None) -> str:
    """Return the `vmId` of a VM whose disk was created with it, or nothing.

    It returns nothing if an older disk may exist, with what was written on an earlier VM of this name: a disk that was
    attached to this VM, or the machine's own disk beside it.
    """
    held: dict[str, Any] = (machine.properties.get("storageProfile") or {}).get("osDisk") or {}
    is_new = str(held.get("createOption") or "").casefold() == "fromimage"
    is_held = disk is None or refers_to((held.get("managedDisk") or {}).get("id"), disk.ref)
    return vm_id_of(machine) if is_new and is_held else ""
