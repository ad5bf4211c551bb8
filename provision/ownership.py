"""Which resources are ours: a tag alone never decides. All pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.resource import Kind, Ref
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import OFF, ObservedResource
from gpuinfra.provision.names import default_group, name_of, ref_of

LEFT_ALONE = "looks like ours, left alone"
UNTAGGED = "exists, untagged"


class Owner(StrEnum):
    """Whose a virtual machine is, as far as its own body tells."""

    OURS = "ours"
    """Tagged with its own name, and in its default group or made as `up` makes machines."""
    UNTAGGED = "untagged"
    """Named and made as ours are, without the tag."""
    LOOKALIKE = "lookalike"
    """Tagged, and nothing else fits: it is reported and never changed."""
    OTHER = "other"


def owner_of(machine: ObservedResource) -> Owner:
    """Whose this machine is."""
    name, tagged = machine.ref.name, tags.get(machine.tags, tags.NAME)
    if is_default_group(machine.ref.group, name) or is_made_by_us(machine):
        return Owner.OURS if tags.belongs_to(machine.tags, name) else Owner.UNTAGGED
    return Owner.LOOKALIKE if tagged else Owner.OTHER


def is_made_by_us(machine: ObservedResource) -> bool:
    """Whether it has what every machine of `up` has and no tag can say: disk and NIC under our names, the NIC deleted
    with the machine, its own name as host name, and no password."""
    found, name = machine.properties, machine.ref.name
    disk = (found.get("storageProfile") or {}).get("osDisk") or {}
    nics = (found.get("networkProfile") or {}).get("networkInterfaces") or []
    own_nics = [nic for nic in nics if refers_to(nic.get("id"), ref_of(Kind.NIC, machine.ref.group, name))]
    system = found.get("osProfile") or {}
    return (
        _same(disk.get("name"), name_of(Kind.DISK, name))
        and any(_same((nic.get("properties") or {}).get("deleteOption"), "Delete") for nic in own_nics)
        and _same(system.get("computerName"), name)
        and (system.get("linuxConfiguration") or {}).get("disablePasswordAuthentication") is True
    )


def refers_to(resource_id: Any, ref: Ref) -> bool:
    """Whether an id is that of this resource, or of something inside of it. The subscription is not compared."""
    own = ref.id("").casefold().removeprefix("/subscriptions/")
    return f"{own}/" in f"{str(resource_id or '').casefold()}/"


def _same(found: Any, wanted: str) -> bool:
    return str(found or "").casefold() == wanted.casefold()


def has_our_name(ref: Ref, marks: Mapping[str, str] | None) -> bool:
    """Whether a part that carries a machine's tag has the name that such a part of this machine gets."""
    machine = tags.get(marks, tags.NAME)
    if not machine or ref.kind is Kind.RESOURCE_GROUP:
        return False
    return ref.name.casefold() == name_of(ref.kind, machine).casefold()


def is_own_group(group: ObservedResource, name: str) -> bool:
    """Whether a group goes with this machine: it has the default name and the machine's tag.

    A group that a spec names is never deleted, even if `up` created it: others may rely on it.
    """
    return is_default_group(group.ref.group, name) and tags.belongs_to(group.tags, name)


def is_leftover(ref: Ref, marks: Mapping[str, str] | None) -> bool:
    """Whether a tagged part without a machine is certainly ours: it has our name and is in the default group."""
    return has_our_name(ref, marks) and is_default_group(ref.group, tags.get(marks, tags.NAME))


def is_default_group(group: str, machine: str) -> bool:
    """Whether this is the group that a machine gets if its spec names none."""
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
