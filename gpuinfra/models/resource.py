"""Azure resources as values: kind, reference and desired state."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """The kinds of resources of a machine, in the order of their creation."""

    RESOURCE_GROUP = "resource-group"
    NSG = "nsg"
    VNET = "vnet"
    PUBLIC_IP = "public-ip"
    NIC = "nic"
    VM = "vm"
    DISK = "disk"
    SHUTDOWN_SCHEDULE = "shutdown-schedule"


ARM_TYPES = {
    Kind.RESOURCE_GROUP: "Microsoft.Resources/resourceGroups",
    Kind.NSG: "Microsoft.Network/networkSecurityGroups",
    Kind.VNET: "Microsoft.Network/virtualNetworks",
    Kind.PUBLIC_IP: "Microsoft.Network/publicIPAddresses",
    Kind.NIC: "Microsoft.Network/networkInterfaces",
    Kind.VM: "Microsoft.Compute/virtualMachines",
    Kind.DISK: "Microsoft.Compute/disks",
    Kind.SHUTDOWN_SCHEDULE: "Microsoft.DevTestLab/schedules",
}


@dataclass(frozen=True, slots=True)
class Ref:
    """A reference to a resource: enough to build its id in any subscription."""

    kind: Kind
    group: str
    name: str

    def id(self, subscription: str) -> str:
        group = f"/subscriptions/{subscription}/resourceGroups/{self.group}"
        return group if self.kind is Kind.RESOURCE_GROUP else f"{group}/providers/{ARM_TYPES[self.kind]}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class MachineId:
    """The identity of a VM. It distinguishes machines with the same name."""

    subscription: str
    group_name: str
    name: str
    host_key: str = field(default="", compare=False)
    """The host key that was recorded with the id; may be empty."""

    def __str__(self) -> str:
        return Ref(Kind.VM, self.group_name, self.name).id(self.subscription)


_MACHINE_ID = re.compile(
    r"/subscriptions/([0-9A-Za-z-]{1,64})/resourceGroups/([^/\s]{1,90})"
    r"/providers/Microsoft\.Compute/virtualMachines/([0-9A-Za-z-]{1,64})",
    re.IGNORECASE,
)


def parse_machine_id(text: str | None, host_key: str = "") -> MachineId | None:
    """Return the machine of an Azure resource id, or None for any other text."""
    found = _MACHINE_ID.fullmatch(text or "")
    return MachineId(found[1], found[2], found[3], host_key) if found else None


def same_machine(one: str, other: str) -> bool:
    """Return whether two ids are equal. Azure ignores case."""
    return one.casefold() == other.casefold()


@dataclass(frozen=True, slots=True)
class Resource:
    """A desired resource: its reference and its ARM body."""

    ref: Ref
    body: dict[str, Any]
    secrets: dict[str, Any] = field(default_factory=dict, repr=False)
    """Parts of the body's `properties` that are sent to Azure, but never shown or stored."""
