"""Fetch what a job wrote to `outputs/`, and copy it on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.app.frontend import Frontend
from gpuinfra.app.run_control import fetch_outputs
from gpuinfra.app.settings import Settings
from gpuinfra.app.workspace import Workspace, open_workspace
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.run import Run, RunOutputs
from gpuinfra.runner.ignore import leave_out_of_uploads
from gpuinfra.runner.outputs import copy_outputs, kept_files
from gpuinfra.runner.settle import is_lost_for_good
from gpuinfra.workspace import check_inside

if TYPE_CHECKING:
    from gpuinfra.runner.fetch import Fetched


def outputs(settings: Settings, run_id: str, folder: Path | None, frontend: Frontend) -> RunOutputs:
    """Fetch a run's missing outputs, and copy all of them to `folder` if given."""
    if folder:
        check_inside(folder, settings.workspace)
    workspace = open_workspace(settings)
    fetches: list[Fetched] = []
    found, problem = _fetched(settings, workspace.history.find(run_id), frontend, fetches.append)
    path = workspace.run_folder(found.id) / "outputs"
    is_left_out = _leave_out(settings, workspace, folder) if folder else None
    # Copy what is here, even if the rest cannot be fetched now.
    files = copy_outputs(path, folder, replace=settings.yes) if folder else kept_files(path)
    diagnostics = tuple(problem.diagnostics) if problem else _incomplete(found)
    code = problem.exit_code if problem else Exit.FAILED if diagnostics else Exit.DONE
    return RunOutputs(
        found, folder or path, files, folder is not None, is_left_out, diagnostics, code, *_unfinished(fetches)
    )


def _unfinished(fetches: Sequence[Fetched]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files of a running job that were skipped with the reason, and those that it may not have finished."""
    skipped = [f"{name}: it changed whenever it was read" for each in fetches for name in each.skipped]
    skipped += [f"{name}: {reason}" for each in fetches for name, reason in each.unreadable]
    return tuple(skipped), tuple(name for each in fetches for name in each.growing)


def _leave_out(settings: Settings, workspace: Workspace, folder: Path) -> bool | None:
    """Make uploads ignore the folder; return whether they do, or None if it is not in the project."""
    try:
        return leave_out_of_uploads(workspace.state, settings.workspace, folder)
    except OSError:
        return False


def _fetched(
    settings: Settings, run: Run, frontend: Frontend, report: Callable[[Fetched], None]
) -> tuple[Run, Problem | None]:
    # A job that never began has no outputs.
    if run.outputs.complete or not (run.job or run.started) or is_lost_for_good(run):
        return run, None

    try:
        return fetch_outputs(settings, run, frontend, report), None
    except Problem as problem:
        return run, problem


def _incomplete(run: Run) -> tuple[Diagnostic, ...]:
    """Return the diagnostic for missing outputs of a finished job. A running job is expected to be incomplete."""
    if run.outputs.complete or not run.state.is_over or not (run.job or run.started):
        return ()
    from gpuinfra.runner.settle import is_lost_for_good, lost_help

    again = f"`gpuinfra outputs {run.id}` tries again; `gpuinfra runs show {run.id}` has the reasons"
    if is_lost := is_lost_for_good(run):
        again = lost_help(run)
    return (
        Diagnostic(
            Code.OUTPUTS_INCOMPLETE,
            "outputs are not complete",
            note=f"not all that run {run.id} wrote was fetched{f': {run.reason}' if is_lost else ''}",
            help=again,
        ),
    )
