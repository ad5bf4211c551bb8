"""`gpuinfra logs`: what a job printed, and what it goes on to print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpuinfra.app.settings import Settings
from gpuinfra.app.workspace import open_workspace
from gpuinfra.cli.options import begin, frontend
from gpuinfra.cli.runs import ID
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.app.settlement import Settled
    from gpuinfra.models.run import Run
    from gpuinfra.views.job import TerminalSink


def logs(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="ID", help=ID)],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the job ends, and end with its exit code.")
    ] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="The time before each line, in UTC.")] = False,
    stream: Annotated[
        Literal["stdout", "stderr", "both"], typer.Option("--stream", help="Which of the job's streams.")
    ] = "both",
) -> int:
    """Print what a job printed, byte for byte: its standard output to ours, its errors to ours."""
    from gpuinfra.views import diagnostics as diagnostics_view
    from gpuinfra.views import job as view

    settings = begin(context, reaches_cloud=follow)
    workspace = open_workspace(settings)
    found = workspace.history.find(run)
    only = {"stdout": (view.STDOUT,), "stderr": (view.STDERR,), "both": view.BOTH}[stream]
    sink = view.TerminalSink(json=settings.json, timestamps=timestamps, only=only)
    problems: Sequence[Diagnostic] = ()
    settled: Settled | None = None
    if follow and (not found.state.is_over or found.is_unfetched):
        found, problems = _followed(settings, found, sink)
    else:
        if not follow:
            from gpuinfra.app.settlement import settle_runs

            settled = settle_runs(settings, [found])
            (found,) = settled.runs
        _show(workspace.folder(found.id) / "log", sink)
    sink.finish()
    if settings.json:
        view.show_result(found, workspace.folder(found.id), diagnostics=problems, json=True)
    elif problems:
        diagnostics_view.show(problems)
    else:
        view.show_hint(_hint(settings, found, settled))
    return _exit_code(found) if follow else Exit.DONE


def _followed(settings: Settings, run: Run, sink: TerminalSink) -> tuple[Run, Sequence[Diagnostic]]:
    from gpuinfra.app.run_control import follow_run

    try:
        with frontend(settings) as progress:
            sink.progress = progress
            try:
                return follow_run(settings, run, sink, progress), ()
            finally:
                sink.finish()
                sink.progress = None
    except Problem as problem:
        if not run.state.is_over:
            raise
        return run, problem.diagnostics  # how it ended is known, and what is here of its log was printed


def _hint(settings: Settings, run: Run, settled: Settled | None) -> str:
    """What to do where the log is not complete, or why there is none."""
    from gpuinfra.app.settlement import fetch_hint
    from gpuinfra.runner.results.settle import went_off
    from gpuinfra.views.runs import unheard_hint

    if settled and run.id in settled.unheard:
        return unheard_hint(run)
    if settled and run.id in settled.running:
        return f"{run.id} is {run.state.value}: `gpuinfra logs {run.id} -f` follows it"
    if run.state.is_over and not run.job and not run.started:
        return f"{run.id} never began: {run.reason or run.state.value}"
    if run.is_unfetched and went_off(run):
        return f"{run.reason}; {fetch_hint(settings, run)}"
    if run.is_unfetched and settled:
        return f"not everything that it printed may be here: `gpuinfra logs {run.id} -f` fetches the rest"
    return ""


def _exit_code(run: Run) -> int:
    from gpuinfra.app.job_result import exit_code_of

    return exit_code_of(run, [])


def _show(path: Path, sink: TerminalSink) -> None:
    from gpuinfra.runner.jobs.log import LogFile

    try:
        with LogFile(path) as log:
            for frame in log.frames():
                sink(frame)
    except BrokenPipeError:
        raise
    except OSError as error:
        note = f"`{path}`: {error.strerror}"
        raise Problem(Diagnostic(Code.FILE_UNREADABLE, "log cannot be read", note=note)) from error
