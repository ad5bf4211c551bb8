"""`gpuinfra logs`: print or follow a job's output."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.cli.runs import ID
from gpuinfra.diagnostics import Exit


def logs(
    context: typer.Context,
    run: Annotated[str, typer.Argument(metavar="ID", help=ID)],
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until the job ends, and return its exit code.")
    ] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Print the UTC time before each line.")] = False,
    stream: Annotated[
        Literal["stdout", "stderr", "both"], typer.Option("--stream", help="Print only this stream of the job.")
    ] = "both",
) -> int:
    """Print a job's output, byte for byte: stdout to stdout, stderr to stderr."""
    from gpuinfra.app.logs import follow_log, show_log
    from gpuinfra.models.outputs import STDERR, STDOUT
    from gpuinfra.views import diagnostics as diagnostics_view
    from gpuinfra.views import job as view

    settings = start_command(context, reaches_cloud=follow)
    only = {"stdout": (STDOUT,), "stderr": (STDERR,), "both": view.BOTH}[stream]
    with open_frontend(settings) as frontend:
        output = view.TerminalSink(json=settings.json, progress=frontend, timestamps=timestamps, only=only)
        try:
            shown = follow_log(settings, run, output, frontend) if follow else show_log(settings, run, output)
        finally:
            output.finish()
    if settings.json:
        view.show_result(shown.run, shown.folder, diagnostics=shown.diagnostics, json=True)
    elif shown.diagnostics:
        diagnostics_view.show(shown.diagnostics)
    else:
        view.show_hint(shown.hint)
    return shown.exit_code if follow else Exit.DONE
