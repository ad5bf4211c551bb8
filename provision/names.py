"""Names that follow from a machine's own, so that everything is found again from any computer."""

from __future__ import annotations

import hashlib

from gpuinfra.models.resource import Kind, Ref

# https://learn.microsoft.com/azure/azure-resource-manager/management/resource-name-rules
_SUFFIXES = {
    Kind.NSG: ("-nsg", 80),
    Kind.VNET: ("-vnet", 64),
    Kind.PUBLIC_IP: ("-ip", 80),
    Kind.NIC: ("-nic", 80),
    Kind.DISK: ("-disk", 80),
    Kind.VM: ("", 64),
}


def default_group(machine: str) -> str:
    """The group that a machine gets where its spec names none."""
    return f"gpuinfra-{machine}"


def machine_key(group: str, machine: str) -> str:
    """What tells machines apart: the name, and the group where it is not the default one. Azure does not see case."""
    return (machine if group.casefold() == default_group(machine).casefold() else f"{group}/{machine}").casefold()


def name_of(kind: Kind, machine: str) -> str:
    """The name of a machine's part."""
    if kind is Kind.SHUTDOWN_SCHEDULE:
        return f"shutdown-computevm-{machine}"  # Azure's daily stop is known by this name and no other
    suffix, longest = _SUFFIXES[kind]
    if len(machine) + len(suffix) <= longest:
        return machine + suffix
    # Two long names that begin alike must not become one.
    mark = hashlib.sha256(machine.casefold().encode()).hexdigest()[:6]
    return f"{machine[: longest - len(suffix) - 7]}-{mark}{suffix}"


def ref_of(kind: Kind, group: str, machine: str) -> Ref:
    """A machine's part."""
    return Ref(kind, group, group if kind is Kind.RESOURCE_GROUP else name_of(kind, machine))
