"""Find a machine by its name alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.resource import Ref
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import Owner, machine_of_row, owner_of


def locate(rows: Iterable[Mapping[str, Any]], word: str) -> Ref | None:
    """Return the machine in a listing with this name or, failing that, this target name; None if there is none.

    Two machines of one name are a Problem that lists both. One that is not certainly ours counts where no other does.
    """
    found = matching(rows, word)
    if len(found) > 1:
        raise ambiguous_name(word, [f"`{ref.name}` in group `{ref.group}`" for ref in found])
    return found[0] if found else None


def matching(rows: Iterable[Mapping[str, Any]], word: str) -> list[Ref]:
    """Return all machines in a listing that the word may name."""
    parts = [machine_of_row(row) for row in rows]
    choices = (
        _called(parts, word, Owner.OURS),
        # Not by the tag with the target name, which others can write. To use a custom target name, give the spec.
        [part.ref for part in parts if owner_of(part) is Owner.OURS and _is_called(_usual_target(part.ref), word)],
        _called(parts, word, Owner.UNTAGGED),
        _called(parts, word, Owner.UNRECOGNISED),
    )
    return next((each for each in choices if each), [])


def called(rows: Iterable[Mapping[str, Any]], name: str) -> list[Ref]:
    """All machines of a listing with exactly this name. One that is not certainly ours counts where no other does."""
    parts = [machine_of_row(row) for row in rows]
    choices = (_called(parts, name, owner) for owner in (Owner.OURS, Owner.UNTAGGED, Owner.UNRECOGNISED))
    return next((each for each in choices if each), [])


def _called(parts: Iterable[ObservedResource], name: str, owner: Owner) -> list[Ref]:
    return [part.ref for part in parts if _is_called(part.ref.name, name) and owner_of(part) is owner]


def _usual_target(ref: Ref) -> str:
    return ref.name.replace("-", "_")


def _is_called(name: str, word: str) -> bool:
    return name.casefold() == word.casefold()


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
