"""How to read the disk of a VM that was deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuinfra.models.resource import MachineId


def kept_disk_help(machine: MachineId) -> str:
    """Return what is left of a deleted VM, and the command that makes its disk readable.

    `gpuinfra up` would delete the disk. A new VM on this disk would have no lease: the disk goes to a VM that exists.
    """
    from gpuinfra.models.resource import Kind
    from gpuinfra.provision.names import ref_of

    disk = ref_of(Kind.DISK, machine.group_name, machine.name)
    attach = f"az vm disk attach --resource-group GROUP --vm-name VM --name {disk.id(machine.subscription)}"
    return (
        f"the VM {machine.name} was deleted, and its disk {disk.name} is kept; "
        f"`{attach}` attaches it to another VM in its region"
    )
