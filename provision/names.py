"""Derive resource names from the machine name, so that every computer finds them."""

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


def same_name(found: object, wanted: str) -> bool:
    """Return whether a value from Azure, or None, is this name. Azure ignores case."""
    return str(found or "").casefold() == wanted.casefold()


def default_group(machine: str) -> str:
    """Return the resource group for a machine whose spec names none."""
    return f"gpuinfra-{machine}"


def machine_key(group: str, machine: str) -> str:
    """Return a key that identifies a machine: its name, with the group unless it is the default. Azure ignores case."""
    return (machine if same_name(group, default_group(machine)) else f"{group}/{machine}").casefold()


def name_of(kind: Kind, machine: str) -> str:
    """Return the name of a machine's resource."""
    if kind is Kind.SHUTDOWN_SCHEDULE:
        return f"shutdown-computevm-{machine}"  # Azure accepts the daily shutdown schedule only under this name
    suffix, longest = _SUFFIXES[kind]
    if len(machine) + len(suffix) <= longest:
        return machine + suffix
    # Long names with the same beginning must stay different.
    mark = hashlib.sha256(machine.casefold().encode()).hexdigest()[:6]
    return f"{machine[: longest - len(suffix) - 7]}-{mark}{suffix}"


def ref_of(kind: Kind, group: str, machine: str) -> Ref:
    """Return the reference to a machine's resource."""
    return Ref(kind, group, group if kind is Kind.RESOURCE_GROUP else name_of(kind, machine))
