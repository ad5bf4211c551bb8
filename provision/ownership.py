"""Which resources are ours: a tag alone never decides. All pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.resource import Kind, Ref
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import OFF, ObservedResource
from gpuinfra.provision.names import default_group, name_of

LEFT_ALONE = "looks like ours, left alone"
UNTAGGED = "exists, untagged"
# Only one of the two has to match on a tagged machine: a disk or an interface can be swapped.
_PARTS = (Kind.DISK, Kind.NIC)


class Owner(StrEnum):
    """Whose a virtual machine is, as far as its own body tells."""

    OURS = "ours"
    """Tagged with its own name, and in its default group or made of parts that have our names."""
    UNTAGGED = "untagged"
    """Named and made as ours are, without the tag."""
    LOOKALIKE = "lookalike"
    """Tagged, and nothing else fits: it is reported and never changed."""
    OTHER = "other"


def owner_of(machine: ObservedResource) -> Owner:
    """Whose this machine is."""
    name, tagged = machine.ref.name, tags.get(machine.tags, tags.NAME)
    in_own_group = _is_default(machine.ref.group, name)
    fitting = _fitting_parts(machine)
    if tags.belongs_to(machine.tags, name) and (in_own_group or fitting):
        return Owner.OURS
    if in_own_group or fitting == len(_PARTS):
        return Owner.UNTAGGED
    return Owner.LOOKALIKE if tagged else Owner.OTHER


def is_made_by_us(machine: ObservedResource) -> bool:
    """Whether disk and interface have the names that `up` gives them, whatever the tags say."""
    return _fitting_parts(machine) == len(_PARTS)


def _fitting_parts(machine: ObservedResource) -> int:
    """How many of its parts have the names that follow from its own."""
    found = machine.properties
    disk = str(((found.get("storageProfile") or {}).get("osDisk") or {}).get("name") or "")
    interfaces = (found.get("networkProfile") or {}).get("networkInterfaces") or []
    names = {Kind.DISK: [disk], Kind.NIC: [str(each.get("id") or "").rsplit("/", 1)[-1] for each in interfaces]}
    wanted = {kind: name_of(kind, machine.ref.name).casefold() for kind in _PARTS}
    return sum(wanted[kind] in {name.casefold() for name in names[kind]} for kind in _PARTS)


def has_our_name(ref: Ref, marks: Mapping[str, str] | None) -> bool:
    """Whether a part that carries a machine's tag has the name that such a part of this machine gets."""
    machine = tags.get(marks, tags.NAME)
    if not machine or ref.kind is Kind.RESOURCE_GROUP:
        return False
    return ref.name.casefold() == name_of(ref.kind, machine).casefold()


def is_own_group(
    group: ObservedResource, name: str, machine: ObservedResource | None, *, created: bool = False
) -> bool:
    """Whether a group was created for this machine, and may be deleted with it.

    It carries the machine's tag, which `up` gives only to a group that it creates, and has the default name. Of a group
    that a spec names, the machine itself must also say that `up` created it, or this run must have: `created`.
    """
    if not tags.belongs_to(group.tags, name):
        return False
    if _is_default(group.ref.group, name) or created:
        return True
    return machine is not None and tags.get(machine.tags, tags.GROUP) == tags.CREATED


def is_leftover(ref: Ref, marks: Mapping[str, str] | None) -> bool:
    """Whether a tagged part without a machine is certainly ours: it has our name and is in the default group."""
    return has_our_name(ref, marks) and _is_default(ref.group, tags.get(marks, tags.NAME))


def _is_default(group: str, machine: str) -> bool:
    return group.casefold() == default_group(machine).casefold()


def machine_of_row(row: Mapping[str, Any]) -> ObservedResource:
    """A machine from a listing."""
    # /subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/virtualMachines/M
    words = str(row.get("id") or "").split("/")
    group = words[4] if len(words) > 4 else ""
    return ObservedResource(Ref(Kind.VM, group, str(row.get("name") or words[-1])), dict(row))


def partition(kind: Kind, bodies: Iterable[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Of listed bodies that carry our tag, those that are ours; and a line for each that is not."""
    ours, strange = list[dict[str, Any]](), list[str]()
    for body in bodies:
        found = machine_of_row(body)
        ref = Ref(kind, found.ref.group, found.ref.name)
        if owner_of(found) is Owner.OURS if kind is Kind.VM else has_our_name(ref, found.tags):
            ours.append(dict(body))
        else:
            strange.append(left_alone(ref, tags.get(found.tags, tags.NAME)))
    return ours, strange


def left_alone(ref: Ref, machine: str, power: str = "") -> str:
    """The line that reports a resource which only looks like a part of this machine."""
    state = f", {power}" if power else ""
    return f"{ref} in group {ref.group}{state}: it has the tag of {machine} and is not part of it; {LEFT_ALONE}"


def untagged_problem(machine: ObservedResource) -> Problem:
    """The error about a machine under our name without our tags."""
    ref, is_off = machine.ref, machine.power == OFF
    billed = "is deallocated" if is_off else f"is {machine.power} and billed"
    by_hand = f"`az vm deallocate --resource-group {ref.group} --name {ref.name}` ends the billing"
    adopt = f"`gpuinfra up --adopt SPEC` puts the tags back, then `gpuinfra down {ref.name}` works"
    other = "gpuinfra did not make it: use another `name` or `resourceGroup`"
    return Problem(
        Diagnostic(
            Code.UNTAGGED_MACHINE,
            f"machine {UNTAGGED}, {'off' if is_off else 'ON'}",
            note=f"`{ref.name}` in group `{ref.group}` {billed}; without gpuinfra's tags it was not changed",
            help=f"{adopt if is_made_by_us(machine) else other}; {by_hand}",
        ),
        exit_code=Exit.LEFT_BEHIND,
    )
