"""What others attached to a machine: it must survive the machine. All pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuinfra.models.resource import Kind, Resource
from gpuinfra.provision.cloud import ObservedResource
from gpuinfra.provision.names import ref_of
from gpuinfra.provision.ownership import refers_to


def attached_by_others(machine: ObservedResource) -> tuple[str, ...]:
    """Disks and NICs of this machine that gpuinfra did not create, each with its group."""
    return tuple(_describe(kind, entry) for kind, entry in _entries(machine) if not _is_ours(kind, entry, machine))


def detaching_update(machine: ObservedResource) -> Resource | None:
    """The change after which Azure deletes none of them with the machine; None if none is needed.

    A machine's delete options decide that: https://learn.microsoft.com/azure/virtual-machines/delete
    """
    changed = {kind for kind, entry in _entries(machine) if _is_at_risk(kind, entry, machine)}
    if not changed:
        return None
    storage, network = _section(machine, "storageProfile"), _section(machine, "networkProfile")
    properties: dict[str, Any] = {}
    if Kind.DISK in changed:
        disks = [{**disk, "deleteOption": "Detach"} for disk in storage.get("dataDisks") or []]
        properties["storageProfile"] = {"dataDisks": disks}
        if _is_at_risk(Kind.DISK, disk := storage.get("osDisk") or {}, machine):
            properties["storageProfile"]["osDisk"] = {**disk, "deleteOption": "Detach"}
    if Kind.NIC in changed:
        nics = [_detached(nic, machine) for nic in network.get("networkInterfaces") or []]
        properties["networkProfile"] = {"networkInterfaces": nics}
    return Resource(machine.ref, {"properties": properties})


def _entries(machine: ObservedResource) -> Iterator[tuple[Kind, dict[str, Any]]]:
    storage = _section(machine, "storageProfile")
    yield from ((Kind.DISK, disk) for disk in (storage.get("osDisk"), *(storage.get("dataDisks") or [])) if disk)
    yield from ((Kind.NIC, nic) for nic in _section(machine, "networkProfile").get("networkInterfaces") or [])


def _section(machine: ObservedResource, name: str) -> dict[str, Any]:
    return machine.properties.get(name) or {}


def _id(kind: Kind, entry: dict[str, Any]) -> str:
    return str((entry if kind is Kind.NIC else entry.get("managedDisk") or {}).get("id") or "")


def _is_ours(kind: Kind, entry: dict[str, Any], machine: ObservedResource) -> bool:
    own, found = ref_of(kind, machine.ref.group, machine.ref.name), _id(kind, entry)
    # Azure shows the id of a new disk only once the disk is there.
    return refers_to(found, own) if found else str(entry.get("name") or "").casefold() == own.name.casefold()


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
