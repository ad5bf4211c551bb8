"""Compare runs in the history."""

from __future__ import annotations

from datetime import UTC, datetime

from gpuinfra.app.machine_costs import with_costs
from gpuinfra.app.settings import Settings
from gpuinfra.app.workspace import open_workspace
from gpuinfra.diagnostics import Code, problem
from gpuinfra.models.run import FileDifference, Run
from gpuinfra.runner.outputs import compare


def compare_runs(settings: Settings, a: str, b: str) -> tuple[Run, Run, list[FileDifference]]:
    """Return two runs with their costs, and how their outputs differ."""
    workspace = open_workspace(settings)
    one, other = with_costs(settings, [workspace.history.find(each) for each in (a, b)], datetime.now(UTC))
    try:
        files = compare(*(workspace.run_folder(run.id) / "outputs" for run in (one, other)))
    except OSError as error:
        note = f"`{error.filename}`: {error.strerror}"
        raise problem(Code.FILE_UNREADABLE, "file cannot be read", note) from error
    return one, other, files
