"""Which parts in a group that a spec names are ours: others may have resources under the same names there. All pure.

A part is ours if our machine uses it, or if it is exactly what an `up` that was killed leaves behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuinfra.models.resource import Kind, Ref
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Observed, ObservedResource
from gpuinfra.provision.names import ref_of
from gpuinfra.provision.ownership import refers_to
from gpuinfra.provision.resources import nic, nsg, public_ip, vnet


def is_own_part(part: ObservedResource, observed: Observed) -> bool:
    """Whether a part under our name, and with our tag, was made by `up`."""
    match part.ref.kind:
        case Kind.DISK:
            return _is_disk_of(observed.machine, part)
        case Kind.SHUTDOWN_SCHEDULE:
            return refers_to(part.properties.get("targetResourceId"), _ref(observed, Kind.VM))
        case Kind.NIC:
            return _is_own_nic(part, observed)
    own = observed.part(Kind.NIC)
    if own is None or not _is_own_nic(own, observed):
        own = None
    if own and any(refers_to(each, part.ref) for each in nic.uses(own)):
        return True
    users = {Kind.NSG: nsg.users, Kind.VNET: vnet.users, Kind.PUBLIC_IP: public_ip.users}[part.ref.kind](part)
    as_created = {Kind.NSG: nsg.is_as_created, Kind.VNET: vnet.is_as_created, Kind.PUBLIC_IP: public_ip.is_as_created}
    return as_created[part.ref.kind](part) and _has_no_others(users, own)


def _ref(observed: Observed, kind: Kind) -> Ref:
    return ref_of(kind, observed.group, observed.name)


def _is_disk_of(machine: ObservedResource | None, disk: ObservedResource) -> bool:
    if machine is None:
        return False
    held = ((machine.properties.get("storageProfile") or {}).get("osDisk") or {}).get("managedDisk") or {}
    return refers_to(held.get("id"), disk.ref) or refers_to(disk.body.get("managedBy"), machine.ref)


def _is_own_nic(part: ObservedResource, observed: Observed) -> bool:
    """Whether our machine has it; or no machine does, and it joins what `up` joins."""
    machine = observed.machine
    used = (machine.properties.get("networkProfile") or {}).get("networkInterfaces") or [] if machine else []
    if any(refers_to(each.get("id"), part.ref) for each in used):
        return True
    is_free = not part.properties.get("virtualMachine") and tags.belongs_to(part.tags, observed.name)
    wanted = [_ref(observed, kind) for kind in (Kind.NSG, Kind.VNET, Kind.PUBLIC_IP)]
    found = nic.uses(part)
    return is_free and len(found) == len(wanted) and all(map(refers_to, found, wanted))


def _has_no_others(users: Iterable[Mapping[str, Any]], own: ObservedResource | None) -> bool:
    return all(own is not None and refers_to(user.get("id"), own.ref) for user in users)
