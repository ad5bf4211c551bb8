"""What a change would stop or lose, before a question about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuinfra.models.consent import Effect, unknown_runs
from gpuinfra.views.cells import columns
from gpuinfra.views.terminal import messages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuinfra.models.consent import Decision

HEADS = {
    Effect.RESTART: "This restarts {} and stops:",
    Effect.POWER_OFF: "This switches {} off and stops:",
    Effect.DELETE_DISK: "This deletes {} and everything on its disk:",
}


def show(name: str, decision: Decision, attached: Sequence[str] = ()) -> None:
    """The runs, what else is lost, and what others attached to the machine, on stderr."""
    console, lines = messages(), []
    if decision.runs:
        rows = [("RUN", "SCRIPT", "STATE", "OUTPUTS")]
        rows += [
            (run.id, run.script or "(another workspace)", run.state, "not fetched" if run.is_unfetched else "-")
            for run in decision.runs
        ]
        lines += [f"  {line}" for line in columns(rows)]
    if decision.effect is Effect.DELETE_DISK:
        lines.append("  the shared folder (~/.azureml/share), and all other files on the disk")
    if lines:
        console.print(HEADS[decision.effect].format(name), style="bold")
    for line in lines:
        console.print(line)
    if decision.unknown:
        console.print(f"note: {unknown_runs(name, decision.unknown)}")
    if attached and decision.effect is Effect.DELETE_DISK:
        console.print(f"note: {', '.join(attached)} will be detached and kept")
