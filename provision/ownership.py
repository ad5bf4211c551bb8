"""Decide which resources are ours. A tag alone never suffices. All functions are pure."""

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from typing import Any

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.plan import Kind, Ref
from gpuinfra.provision import tags
from gpuinfra.provision.observed_resource import ObservedResource, refers_to, resource_of_row
from gpuinfra.provision.power import DEALLOCATED
from gpuinfra.provision.tags import default_group, machine_key, name_of, ref_of, same_name

LEFT_ALONE = "looks like ours, left alone"
UNTAGGED = "exists, untagged"
UNRECOGNISED = "exists, not recognised"


class Owner(StrEnum):
    """The owner of a VM, as far as its body shows."""

    OURS = "ours"
    """Tagged with its own name, and either in its default group or configured as `up` configures VMs."""
    UNTAGGED = "untagged"
    """Named and made as ours are, without the tag."""
    UNRECOGNISED = "unrecognised"
    """Tagged with its own name and created as `up` does it, but with another disk or NIC: it may be ours and billed."""
    LOOKALIKE = "lookalike"
    """Tagged, but nothing else matches: reported and never changed."""
    OTHER = "other"


def owner_of(machine: ObservedResource) -> Owner:
    """Return the owner of a VM."""
    name, tagged = machine.ref.name, tags.get(machine.tags, tags.NAME)
    if is_default_group(machine.ref.group, name) or is_made_by_us(machine):
        return Owner.OURS if tags.belongs_to(machine.tags, name) else Owner.UNTAGGED
    if tags.belongs_to(machine.tags, name) and _is_created_by_us(machine):
        return Owner.UNRECOGNISED
    return Owner.LOOKALIKE if tagged else Owner.OTHER


def is_namesake(machine: ObservedResource, name: str) -> bool:
    """Return whether this is our machine with this name, or one that lost its tags, its disk or its NIC."""
    return same_name(machine.ref.name, name) and owner_of(machine) in {Owner.OURS, Owner.UNTAGGED, Owner.UNRECOGNISED}


def is_made_by_us(machine: ObservedResource) -> bool:
    """Return whether it is configured as `up` configures VMs, whatever its tags say.

    Disk and NIC have our names, the NIC is deleted with the VM, its host name is its own name, and it has no password.
    """
    return _is_created_by_us(machine) and not misfit(machine)


def _is_created_by_us(machine: ObservedResource) -> bool:
    """Return whether it has the properties that `up` sets and that cannot change later: host name, and no password."""
    system = machine.properties.get("osProfile") or {}
    has_no_password = (system.get("linuxConfiguration") or {}).get("disablePasswordAuthentication") is True
    return same_name(system.get("computerName"), machine.ref.name) and has_no_password


def misfit(machine: ObservedResource) -> str:
    """Describe how disk and NIC differ from what `up` creates; empty if they do not."""
    name = machine.ref.name
    own_nics = [nic for nic in machine.nics if refers_to(nic.get("id"), ref_of(Kind.NIC, machine.ref.group, name))]
    reasons = []
    if not same_name(machine.os_disk.get("name"), name_of(Kind.DISK, name)):
        reasons.append(f"its disk is not `{name_of(Kind.DISK, name)}`")
    if not own_nics:
        reasons.append(f"its NIC is not `{name_of(Kind.NIC, name)}`")
    elif not any(same_name((nic.get("properties") or {}).get("deleteOption"), "Delete") for nic in own_nics):
        reasons.append(f"its NIC `{name_of(Kind.NIC, name)}` is not set to be deleted with it")
    return " and ".join(reasons)


def has_our_name(ref: Ref, marks: Mapping[str, str] | None) -> bool:
    """Return whether a tagged resource has the name that `up` would give it for the machine in the tag."""
    machine = tags.get(marks, tags.NAME)
    if not machine or ref.kind is Kind.RESOURCE_GROUP:
        return False
    return same_name(ref.name, name_of(ref.kind, machine))


def is_own_group(group: ObservedResource, name: str) -> bool:
    """Return whether a group belongs to this machine: it has the default name and the machine's tag.

    A group that a spec names is never deleted, even if `up` created it: others may rely on it.
    """
    return is_default_group(group.ref.group, name) and tags.belongs_to(group.tags, name)


def is_leftover(ref: Ref, marks: Mapping[str, str] | None) -> bool:
    """Return whether a tagged resource without a VM is certainly ours: our name, in the default group."""
    return has_our_name(ref, marks) and is_default_group(ref.group, tags.get(marks, tags.NAME))


def is_default_group(group: str, machine: str) -> bool:
    """Return whether this is the group for a machine whose spec names none."""
    return same_name(group, default_group(machine))


def machine_of_row(row: Mapping[str, Any]) -> ObservedResource:
    """Return a VM from a row of a listing."""
    return resource_of_row(Kind.VM, row)


def partition(
    kind: Kind, bodies: Iterable[Mapping[str, Any]], machines: Collection[str] = ()
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return which listed bodies with our tag are ours, and a line for each that is not.

    `machines` has the keys of our machines. A disk or address is ours if it is in the group of its machine, or left
    over in the default group.
    """
    ours, strange = list[dict[str, Any]](), list[str]()
    for body in bodies:
        found = resource_of_row(kind, body)
        ref, machine = found.ref, tags.get(found.tags, tags.NAME)
        if kind is Kind.VM:
            is_ours = owner_of(found) is Owner.OURS
        else:
            is_known = machine_key(ref.group, machine) in machines
            is_ours = has_our_name(ref, found.tags) and (is_known or is_leftover(ref, found.tags))
        if is_ours:
            ours.append(dict(body))
        else:
            strange.append(left_alone(ref, machine))
    return ours, strange


def left_alone_machine(machine: ObservedResource) -> str:
    """Describe a machine that only looks like ours."""
    ref, tagged = machine.ref, tags.get(machine.tags, tags.NAME)
    if owner_of(machine) is not Owner.UNRECOGNISED:
        return left_alone(ref, tagged, machine.power)
    return (
        f"{ref} in group {ref.group}, {machine.power}: it has the tag of {tagged}, but {misfit(machine)}; {LEFT_ALONE}"
    )


def left_alone(ref: Ref, machine: str, power: str = "") -> str:
    """Describe a resource that looks like part of this machine but is not."""
    state = f", {power}" if power else ""
    return f"{ref} in group {ref.group}{state}: it has the tag of {machine} and is not part of it; {LEFT_ALONE}"


def untagged_problem(machine: ObservedResource) -> Problem:
    """Return the Problem for a machine with our name that lost its tags, its disk or its NIC."""
    ref, is_off = machine.ref, machine.power == DEALLOCATED
    billed = "is deallocated" if is_off else f"is {machine.power} and billed"
    if owner_of(machine) is Owner.UNRECOGNISED:
        state, why = UNRECOGNISED, f"it has gpuinfra's tags, but {misfit(machine)}, so it was not changed"
        disk, nic = name_of(Kind.DISK, ref.name), name_of(Kind.NIC, ref.name)
        fix = f"gpuinfra recognises it again with disk `{disk}`, and NIC `{nic}` set to be deleted with it"
    else:
        state, why = UNTAGGED, "without gpuinfra's tags it was not changed"
        adopt = f"`gpuinfra up --adopt SPEC` restores the tags, then `gpuinfra down {ref.name}` works"
        fix = adopt if is_made_by_us(machine) else "gpuinfra did not create it: use another `name` or `resourceGroup`"
    return Problem(
        Diagnostic(
            Code.UNTAGGED_MACHINE,
            f"machine {state}, {'off' if is_off else 'ON'}",
            note=f"`{ref.name}` in group `{ref.group}` {billed}; {why}",
            help=f"{fix}; {_by_hand(ref)}",
        ),
        exit_code=Exit.LEFT_BEHIND,
    )


def on_elsewhere(machine: ObservedResource, group: str) -> str:
    """Describe a machine with the same name that is on in another group than the given one."""
    ref, spec = machine.ref, f"with `resourceGroup: {machine.ref.group}` in the spec"
    where = f"{ref} in group {ref.group} is {machine.power}"
    if owner_of(machine) is Owner.OURS:
        return f"{where}, and this was for group {group}: {spec}, `down` ends it"
    adopt = f"{spec}, `gpuinfra up --adopt SPEC` restores the tags; " if is_made_by_us(machine) else ""
    why = misfit(machine) if owner_of(machine) is Owner.UNRECOGNISED else "untagged"
    return f"{where}, {why}, and this was for group {group}: {adopt}{_by_hand(ref)}"


def _by_hand(ref: Ref) -> str:
    """Return the command that ends the billing of a machine that gpuinfra does not change."""
    return f"`az vm deallocate --resource-group {ref.group} --name {ref.name}` ends the billing"
