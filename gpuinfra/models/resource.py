"""Resources in Azure as plain values: what kind, which one, and what it should be."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Kind(StrEnum):
    """The kinds of resource that a machine is made of, in the order in which they come to be."""

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
    """Which resource: enough to make its id in any subscription."""

    kind: Kind
    group: str
    name: str

    def id(self, subscription: str) -> str:
        """The id that Azure knows it by."""
        group = f"/subscriptions/{subscription}/resourceGroups/{self.group}"
        return group if self.kind is Kind.RESOURCE_GROUP else f"{group}/providers/{ARM_TYPES[self.kind]}/{self.name}"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class MachineId:
    """Which virtual machine: what target files and runs keep of it, and what tells it from others of its name."""

    subscription: str
    group_name: str
    name: str
    host_key: str = field(default="", compare=False)
    """By which it was known where this was read; empty where that does not matter."""

    def __str__(self) -> str:
        return Ref(Kind.VM, self.group_name, self.name).id(self.subscription)


_MACHINE_ID = re.compile(
    r"/subscriptions/([0-9A-Za-z-]{1,64})/resourceGroups/([^/\s]{1,90})"
    r"/providers/Microsoft\.Compute/virtualMachines/([0-9A-Za-z-]{1,64})",
    re.IGNORECASE,
)


def parse_machine_id(text: str | None, host_key: str = "") -> MachineId | None:
    """The machine that an id of Azure's means; None for any other text."""
    found = _MACHINE_ID.fullmatch(text or "")
    return MachineId(found[1], found[2], found[3], host_key) if found else None


def same_machine(one: str, other: str) -> bool:
    """Whether two ids mean one machine: Azure does not see case."""
    return one.casefold() == other.casefold()


@dataclass(frozen=True, slots=True)
class Resource:
    """What a resource should be: a body in ARM's own words."""

    ref: Ref
    body: dict[str, Any]
    secrets: dict[str, Any] = field(default_factory=dict, repr=False)
    """Parts of the body's `properties` that are sent to Azure and never shown or kept."""
