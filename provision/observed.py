"""All resources in Azure that concern one machine, and which of them are ours. All pure.

In a group that the spec names, others may use the same names. They can write tags, create resources with our names, and
attach to resources that they cannot delete. So a resource is ours if our VM uses it. Without a VM, it is ours if it is
exactly what an interrupted `up` leaves behind: configured as `up` creates it, which requires the right to write the
resource itself, and used by nothing except a NIC that passes the same test.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuinfra.models.plan import Kind, Ref
from gpuinfra.provision import tags
from gpuinfra.provision.observed_resource import ObservedResource, refers_to, same
from gpuinfra.provision.ownership import (
    Owner,
    is_default_group,
    is_namesake,
    is_own_group,
    left_alone,
    owner_of,
)
from gpuinfra.provision.resources import nic, nsg, public_ip, vnet
from gpuinfra.provision.tags import ref_of

NOT_MADE = "it contains resources of others"


@dataclass(frozen=True, slots=True)
class Observed:
    """All resources in Azure that concern one machine."""

    name: str
    group: str
    parts: tuple[ObservedResource, ...] = ()
    unknown: tuple[str, ...] = ()
    """IDs of resources that carry our tag but are of a kind that gpuinfra never creates."""
    adopts: bool = False
    """Whether untagged resources with our names count as ours, because the user agreed to adopt them."""

    def part(self, kind: Kind) -> ObservedResource | None:
        """Return the resource of this kind with our name in the machine's group, ours or not, or None."""
        wanted = ref_of(kind, self.group, self.name)
        return next((part for part in self.parts if same(part.ref, wanted)), None)

    def is_ours(self, part: ObservedResource) -> bool:
        """Return whether a resource has the machine's tag, the expected name and the machine's group.

        Others can write tags. Outside the default group, the resource must also be created or used the way `up` does
        it.
        """
        if not same(part.ref, ref_of(part.ref.kind, self.group, self.name)):
            return False
        if part.ref.kind is Kind.RESOURCE_GROUP:
            return is_own_group(part, self.name)
        if part.ref.kind is Kind.VM and not self._is_made_by_us(part):
            return False
        adopted = self.adopts and not tags.get(part.tags, tags.NAME)
        if not adopted and not tags.belongs_to(part.tags, self.name):
            return False
        return part.ref.kind is Kind.VM or is_default_group(self.group, self.name) or is_own_part(part, self)

    def _is_made_by_us(self, machine: ObservedResource) -> bool:
        """Return whether a tagged VM is in its default group or has the properties that `up` gives its VMs."""
        return self.adopts or owner_of(machine) not in {Owner.UNRECOGNISED, Owner.LOOKALIKE}

    @property
    def machine(self) -> ObservedResource | None:
        """The VM, or None if it does not exist or is not ours."""
        found = self.part(Kind.VM)
        return found if found and self.is_ours(found) else None

    @property
    def untagged(self) -> ObservedResource | None:
        """A VM with our name and group that is not ours, usually because it lacks our tag; else None."""
        found = self.part(Kind.VM)
        return found if found and not self.is_ours(found) else None

    def ours(self) -> Iterator[ObservedResource]:
        """Iterate over the resources that belong to the machine."""
        return (part for part in self.parts if self.is_ours(part))

    def lookalikes(self) -> tuple[ObservedResource, ...]:
        """Return tagged resources, except groups, that do not belong to the machine: reported, never changed."""
        tagged = (part for part in self.parts if tags.belongs_to(part.tags, self.name))
        return tuple(part for part in tagged if part.ref.kind is not Kind.RESOURCE_GROUP and not self.is_ours(part))


def namesakes(observed: Observed) -> list[ObservedResource]:
    """Return our machines with the same name in other groups, including those that lost their tags, disk or NIC."""
    machines = [part for part in observed.parts if part.ref.kind is Kind.VM and is_namesake(part, observed.name)]
    return [part for part in machines if part.ref.group.casefold() != observed.group.casefold()]


def is_own_part(part: ObservedResource, observed: Observed) -> bool:
    """Return whether a resource with our name and tag was created by `up`."""
    match part.ref.kind:
        case Kind.DISK:
            return _is_disk_of(observed.machine, part)
        case Kind.SHUTDOWN_SCHEDULE:
            return refers_to(part.properties.get("targetResourceId"), _ref(observed, Kind.VM))
        case Kind.NIC:
            return _is_nic_of(observed.machine, part) or _is_left_nic(part, observed)
    found = observed.part(Kind.NIC)
    if found and _is_nic_of(observed.machine, found) and any(refers_to(each, part.ref) for each in nic.uses(found)):
        return True
    own = found if found and is_own_part(found, observed) else None
    users = {Kind.NSG: nsg.users, Kind.VNET: vnet.users, Kind.PUBLIC_IP: public_ip.users}[part.ref.kind](part)
    as_created = {Kind.NSG: nsg.is_as_created, Kind.VNET: vnet.is_as_created, Kind.PUBLIC_IP: public_ip.is_as_created}
    return as_created[part.ref.kind](part) and _has_no_others(users, own)


def is_deletable(part: ObservedResource, observed: Observed) -> bool:
    """Return whether one of our resources may be deleted with the machine.

    A VNet with subnets or peerings of others stays. An NSG with rules of others is deleted: `up` removes such rules,
    too, and Azure deletes no NSG that a NIC or a subnet uses.
    Others can create a machine that looks like ours and uses an existing NSG or VNet. So in a group that a spec names,
    these are deleted only if they contain what `up` puts into them. They cost nothing.
    """
    if part.ref.kind is Kind.VNET and vnet.of_others(part):
        return False
    if is_default_group(observed.group, observed.name):
        return True
    match part.ref.kind:
        case Kind.NSG:
            return nsg.has_own_rule(part)
        case Kind.VNET:
            return vnet.has_own_subnet(part)
    return True


def why_kept(part: ObservedResource, observed: Observed) -> str:
    """Describe a resource that is ours and is not deleted with the machine."""
    if part.ref.kind is Kind.VNET and vnet.has_own_subnet(part) and (others := vnet.of_others(part)):
        return f"{part.ref}: {NOT_MADE}: {', '.join(others)}"
    return left_alone(part.ref, observed.name)


def _ref(observed: Observed, kind: Kind) -> Ref:
    return ref_of(kind, observed.group, observed.name)


def _is_disk_of(machine: ObservedResource | None, disk: ObservedResource) -> bool:
    if machine is None:
        return False
    return refers_to(machine.os_disk_id, disk.ref) or refers_to(disk.body.get("managedBy"), machine.ref)


def _is_nic_of(machine: ObservedResource | None, part: ObservedResource) -> bool:
    return machine is not None and any(refers_to(each.get("id"), part.ref) for each in machine.nics)


def _is_left_nic(part: ObservedResource, observed: Observed) -> bool:
    """Return whether no VM uses the NIC, it is configured as `up` creates it, and it uses our other resources."""
    wanted = [_ref(observed, kind) for kind in (Kind.NSG, Kind.VNET, Kind.PUBLIC_IP)]
    joins_ours = all(map(refers_to, nic.uses(part), wanted))
    return nic.is_as_created(part) and joins_ours and tags.belongs_to(part.tags, observed.name)


def _has_no_others(users: Iterable[Mapping[str, Any]], own: ObservedResource | None) -> bool:
    return all(own is not None and refers_to(user.get("id"), own.ref) for user in users)
