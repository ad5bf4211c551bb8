"""Find disks, NICs and public IPs that others attached to a machine, which must survive it. All functions are pure."""

from collections.abc import Iterator
from typing import Any

from gpuinfra.models.resource import Kind, Resource
from gpuinfra.provision.names import ref_of, same_name
from gpuinfra.provision.observed_resource import ObservedResource, refers_to


def attached_by_others(machine: ObservedResource, nic: ObservedResource | None) -> tuple[str, ...]:
    """Describe the disks, NICs and (on the own NIC) public IPs that gpuinfra did not create, each with its group."""
    attached = [(kind, entry) for kind, entry in _entries(machine) if not _is_ours(kind, entry, machine)]
    addresses = [(Kind.PUBLIC_IP, address) for address in _addresses(nic) if not _is_own_address(address, machine)]
    return tuple(_describe(kind, entry) for kind, entry in (*attached, *addresses))


def dissociating_update(machine: ObservedResource, nic: ObservedResource | None) -> Resource | None:
    """Return the machine's own NIC without the public IPs of others, or None if it has none.

    The NIC's settings decide whether Azure deletes these IPs with the VM. Not every API version shows that setting.
    """
    if nic is None or all(_is_own_address(address, machine) for address in _addresses(nic)):
        return None
    configurations = [_without_foreign_address(each, machine) for each in _configurations(nic)]
    return Resource(nic.ref, {**nic.body, "properties": {**nic.properties, "ipConfigurations": configurations}})


def detaching_update(machine: ObservedResource) -> Resource | None:
    """Return the update after which Azure keeps the attachments when it deletes the VM, or None if none is needed.

    The VM's delete options decide this: https://learn.microsoft.com/azure/virtual-machines/delete
    """
    changed = {kind for kind, entry in _entries(machine) if _is_at_risk(kind, entry, machine)}
    if not changed:
        return None
    properties: dict[str, Any] = {}
    if Kind.DISK in changed:
        disks = [{**disk, "deleteOption": "Detach"} for disk in _data_disks(machine)]
        properties["storageProfile"] = {"dataDisks": disks}
        if _is_at_risk(Kind.DISK, machine.os_disk, machine):
            properties["storageProfile"]["osDisk"] = {**machine.os_disk, "deleteOption": "Detach"}
    if Kind.NIC in changed:
        nics = [_detached(nic, machine) for nic in machine.nics]
        properties["networkProfile"] = {"networkInterfaces": nics}
    return Resource(machine.ref, {"properties": properties})


def _entries(machine: ObservedResource) -> Iterator[tuple[Kind, dict[str, Any]]]:
    yield from ((Kind.DISK, disk) for disk in (machine.os_disk, *_data_disks(machine)) if disk)
    yield from ((Kind.NIC, nic) for nic in machine.nics)


def _data_disks(machine: ObservedResource) -> list[dict[str, Any]]:
    return (machine.properties.get("storageProfile") or {}).get("dataDisks") or []


def _id(kind: Kind, entry: dict[str, Any]) -> str:
    return str(((entry.get("managedDisk") or {}) if kind is Kind.DISK else entry).get("id") or "")


def _is_ours(kind: Kind, entry: dict[str, Any], machine: ObservedResource) -> bool:
    own, found = ref_of(kind, machine.ref.group, machine.ref.name), _id(kind, entry)
    # Azure shows the ID of a new disk only after the disk exists.
    return refers_to(found, own) if found else same_name(entry.get("name"), own.name)


def _configurations(nic: ObservedResource | None) -> list[dict[str, Any]]:
    return list(nic.properties.get("ipConfigurations") or []) if nic else []


def _address(configuration: dict[str, Any]) -> dict[str, Any]:
    return (configuration.get("properties") or {}).get("publicIPAddress") or {}


def _addresses(nic: ObservedResource | None) -> list[dict[str, Any]]:
    return [address for each in _configurations(nic) if (address := _address(each))]


def _is_own_address(address: dict[str, Any], machine: ObservedResource) -> bool:
    return refers_to(address.get("id"), ref_of(Kind.PUBLIC_IP, machine.ref.group, machine.ref.name))


def _without_foreign_address(configuration: dict[str, Any], machine: ObservedResource) -> dict[str, Any]:
    address, inner = _address(configuration), configuration.get("properties") or {}
    if not address or _is_own_address(address, machine):
        return configuration
    return {**configuration, "properties": {name: inner[name] for name in inner if name != "publicIPAddress"}}


def _option(entry: dict[str, Any]) -> str:
    return str((entry.get("properties") or entry).get("deleteOption") or "").casefold()


def _is_at_risk(kind: Kind, entry: dict[str, Any], machine: ObservedResource) -> bool:
    return _option(entry) == "delete" and not _is_ours(kind, entry, machine)


def _detached(nic: dict[str, Any], machine: ObservedResource) -> dict[str, Any]:
    if not _is_at_risk(Kind.NIC, nic, machine):
        return nic
    return {**nic, "properties": {**(nic.get("properties") or {}), "deleteOption": "Detach"}}


def _describe(kind: Kind, entry: dict[str, Any]) -> str:
    words = _id(kind, entry).split("/")
    place = f" in group {words[4]}" if len(words) > 4 else ""
    return f"{kind} {words[-1] or entry.get('name')}{place}"
