"""`gpuinfra logs`: what a job printed, and what it goes on to print."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from gpuinfra.cli.options import begin, frontend
from gpuinfra.cli.runs import ID
from gpuinfra.diagnostics import Exit


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
    from gpuinfra.app.logs import follow_log, show_log
    from gpuinfra.views import diagnostics as diagnostics_view
    from gpuinfra.views import job as view

    settings = begin(context, reaches_cloud=follow)
    only = {"stdout": (view.STDOUT,), "stderr": (view.STDERR,), "both": view.BOTH}[stream]
    with frontend(settings) as progress:
        output = view.TerminalSink(json=settings.json, progress=progress, timestamps=timestamps, only=only)
        try:
            shown = follow_log(settings, run, output, progress) if follow else show_log(settings, run, output)
        finally:
            output.finish()
    if settings.json:
        view.show_result(shown.run, shown.folder, diagnostics=shown.diagnostics, json=True)
    elif shown.diagnostics:
        diagnostics_view.show(shown.diagnostics)
    else:
        view.show_hint(shown.hint)
    return shown.exit_code if follow else Exit.DONE
