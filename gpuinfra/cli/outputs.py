"""`gpuinfra outputs`: what a job wrote to `outputs/`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.app.settings import Settings
from gpuinfra.app.workspace import Workspace, open_workspace
from gpuinfra.cli.options import begin, frontend
from gpuinfra.cli.runs import ID
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.models.run import Run


def outputs(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="ID", help=ID)],
    folder: Annotated[
        Path | None, typer.Argument(metavar="DIR", help="Where to copy it to; it is made.", show_default=False)
    ] = None,
    list_files: Annotated[bool, typer.Option("--list", help="Names and sizes of the files.")] = False,
) -> int:
    """Fetch what is not here yet of a job's outputs; say where they are, list them, or copy them."""
    from gpuinfra.runner.results.kept import copy_outputs, kept_files
    from gpuinfra.views import outputs as view
    from gpuinfra.workspace import check_inside

    settings = begin(context)
    if folder:
        check_inside(folder, settings.workspace)
    workspace = open_workspace(settings)
    found, problem = _fetched(settings, workspace.history.find(run))
    path = workspace.folder(found.id) / "outputs"
    is_left_out = _leave_out(settings, workspace, folder) if folder else None
    # What is here is given, though there is more that cannot be had now.
    files = copy_outputs(path, folder, replace=settings.yes) if folder else kept_files(path)
    diagnostics = problem.diagnostics if problem else _incomplete(found)
    shown = view.Shown(found, folder or path, files, copied=folder is not None, left_out=is_left_out)
    view.show(shown, diagnostics, list_files=list_files, json=settings.json)
    if problem:
        return problem.exit_code
    return Exit.FAILED if diagnostics else Exit.DONE


def _leave_out(settings: Settings, workspace: Workspace, folder: Path) -> bool | None:
    """Whether uploads leave out the folder; None where it is not in the project."""
    from gpuinfra.runner.results.copied import leave_out_of_uploads

    try:
        return leave_out_of_uploads(workspace.state, settings.workspace, folder)
    except OSError:
        return False


def _fetched(settings: Settings, run: Run) -> tuple[Run, Problem | None]:
    # A job that never began has written nothing.
    if run.outputs.complete or not (run.job or run.started):
        return run, None
    from gpuinfra.app.run_control import fetch_outputs

    try:
        with frontend(settings) as progress:
            return fetch_outputs(settings, run, progress), None
    except Problem as problem:
        return run, problem


def _incomplete(run: Run) -> tuple[Diagnostic, ...]:
    """Of a job that goes on nobody expects that all is here."""
    if run.outputs.complete or not run.state.is_over or not (run.job or run.started):
        return ()
    return (
        Diagnostic(
            Code.OUTPUTS_INCOMPLETE,
            "outputs are not complete",
            note=f"not all that run {run.id} wrote was fetched",
            help=f"`gpuinfra outputs {run.id}` tries again; `gpuinfra runs show {run.id}` has the reasons",
        ),
    )
