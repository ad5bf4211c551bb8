"""What `detach` removed, and what it left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuinfra.models.run import Run


@dataclass(frozen=True)
class Detached:
    """A target that was forgotten."""

    name: str
    files: tuple[str, ...]
    """The files that were removed."""
    has_machine: bool
    keeps_password: bool = False
    """Whether the keyring did not forget its password."""
    runs: tuple[Run, ...] = ()
    """Runs that cannot be reached any more."""


def unreachable_runs(runs: Sequence[Run]) -> str:
    """Return a list of the runs that cannot be reached without their target."""
    words = (f"{run.id} ({run.state.value}{', outputs not fetched' if run.is_unfetched else ''})" for run in runs)
    return f"cannot be reached without the target: {', '.join(words)}"
