"""`gpuinfra logs`: what a job printed, and what it goes on to print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from gpuinfra.cli.options import begin
from gpuinfra.cli.runs import ID, Remembered
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
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
    from gpuinfra.views import job as view

    settings = begin(context, reaches_cloud=follow)
    remembered = Remembered(settings)
    found = remembered.history.find(run)
    only = {"stdout": (view.STDOUT,), "stderr": (view.STDERR,), "both": view.BOTH}[stream]
    sink = view.TerminalSink(json=settings.json, timestamps=timestamps, only=only)
    if follow and not found.state.is_over:
        from gpuinfra.cli.following import follow_run

        found = follow_run(settings, found, sink)
    else:
        _show(remembered.folder(found) / "log", sink)
    sink.finish()
    if settings.json:
        view.show_result(found, remembered.folder(found), json=True)
    elif not follow and remembered.is_unfollowed(found):
        view.show_unfollowed(found)
    return _exit_code(found) if follow else Exit.DONE


def _exit_code(run: Run) -> int:
    from gpuinfra.cli.ending import exit_code_of

    return exit_code_of(run, [])


def _show(path: Path, sink: TerminalSink) -> None:
    from runner.jobs.log import LogFile

    try:
        with LogFile(path) as log:
            for frame in log.frames():
                sink(frame)
    except BrokenPipeError:
        raise
    except OSError as error:
        note = f"`{path}`: {error.strerror}"
        raise Problem(Diagnostic(Code.FILE_UNREADABLE, "log cannot be read", note=note)) from error
