"""What a change would stop or lose, before a question about it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuinfra.models.consent import Contact, Effect
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
UNKNOWN = {
    Contact.OFF: "{} is not on, so it cannot be asked for its runs: its disk may hold outputs of other workspaces",
    Contact.SILENT: "{} cannot be asked for its runs: jobs of other workspaces may be running there",
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


def unknown_runs(name: str, contact: Contact) -> str:
    """Why there may be more runs than are listed."""
    return UNKNOWN[contact].format(name)
