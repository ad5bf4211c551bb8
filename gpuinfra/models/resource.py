"""Resources in Azure as plain values: what kind, which one, and what it should be."""

from __future__ import annotations

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
class Resource:
    """What a resource should be: a body in ARM's own words."""

    ref: Ref
    body: dict[str, Any]
    secrets: dict[str, Any] = field(default_factory=dict, repr=False)
    """Parts of the body's `properties` that are sent to Azure and never shown or kept."""
