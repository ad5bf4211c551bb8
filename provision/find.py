"""Find a machine by its name alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.resource import Ref
from gpuinfra.provision.names import same_name
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import Owner, machine_of_row, owner_of


def locate(rows: Iterable[Mapping[str, Any]], word: str) -> Ref | None:
    """Return the machine in a listing with this name or, failing that, this target name; None if there is none.

    Raise Problem if more than one matches. A machine that may be ours counts only if no other matches.
    """
    found = matching(rows, word)
    if len(found) > 1:
        raise ambiguous_name(word, [f"`{ref.name}` in group `{ref.group}`" for ref in found])
    return found[0] if found else None


def matching(rows: Iterable[Mapping[str, Any]], word: str) -> list[Ref]:
    """Return all machines in a listing that the word may name."""
    parts = [machine_of_row(row) for row in rows]
    # Not by the tag with the target name, which others can write. To use a custom target name, give the spec.
    targets = [each.ref for each in parts if owner_of(each) is Owner.OURS and same_name(_usual_target(each.ref), word)]
    return _called(parts, word, Owner.OURS) or targets or _called(parts, word, Owner.UNTAGGED, Owner.UNRECOGNISED)


def called(rows: Iterable[Mapping[str, Any]], name: str) -> list[Ref]:
    """Return the machines in a listing with exactly this name: ours, or if there is none, those that may be ours."""
    return _called(list(map(machine_of_row, rows)), name, Owner.OURS, Owner.UNTAGGED, Owner.UNRECOGNISED)


def _called(parts: Sequence[ObservedResource], name: str, *owners: Owner) -> list[Ref]:
    """Return the machines of the first of these owners that has any with this name."""
    named = [part for part in parts if same_name(part.ref.name, name)]
    return next((found for owner in owners if (found := [each.ref for each in named if owner_of(each) is owner])), [])


def _usual_target(ref: Ref) -> str:
    return ref.name.replace("-", "_")


GIVE_FILE = "give the file of the spec: its `resourceGroup` says which machine is meant"


def ambiguous_name(word: str, candidates: Sequence[str], help_line: str = GIVE_FILE) -> Problem:
    """Return the Problem for a name that matches more than one machine."""
    return Problem(
        Diagnostic(
            Code.AMBIGUOUS_NAME,
            "more than one machine of this name",
            note=f"`{word}` is {', or '.join(sorted(candidates))}; nothing was changed",
            help=help_line,
        ),
        exit_code=Exit.USAGE,
    )
