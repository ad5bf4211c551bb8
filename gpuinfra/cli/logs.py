"""`gpuinfra logs`: print or follow a job's output."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.cli.runs import LAST, RunArgument
from gpuinfra.diagnostics import Exit


def logs(  # noqa: PLR0913, PLR0917 each is an option
    context: typer.Context,
    run: RunArgument = LAST,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow until the job ends, and return its exit code.")
    ] = False,
    timestamps: Annotated[bool, typer.Option("--timestamps", help="Print the UTC time before each line.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print every byte, also what was overwritten, such as progress bars.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", metavar="N", min=0, help="Print only the last N lines of what is here.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="T", help="Print what came since then: `10m` ago, or a time in UTC."),
    ] = None,
    stream: Annotated[
        Literal["stdout", "stderr", "both"], typer.Option("--stream", help="Print only this stream of the job.")
    ] = "both",
) -> int:
    """Print a job's output: stdout to stdout, stderr to stderr, each line in its final state."""
    from gpuinfra.app.logs import follow_log, show_log, window_of
    from gpuinfra.models.run import STDERR, STDOUT
    from gpuinfra.views import diagnostics as diagnostics_view
    from gpuinfra.views import job as view

    settings = start_command(context, reaches_cloud=follow)
    only = {"stdout": (STDOUT,), "stderr": (STDERR,), "both": view.BOTH}[stream]
    with open_frontend(settings) as frontend:
        output = view.TerminalSink(
            json=settings.json, progress=frontend, timestamps=timestamps, only=only, raw=raw, final=not (raw or follow)
        )
        window = window_of(tail, since, only)
        try:
            if follow:
                shown = follow_log(settings, run, output, frontend, window)
            else:
                shown = show_log(settings, run, output, window)
        finally:
            output.finish()
    if settings.json:
        view.show_result(shown.run, shown.folder, diagnostics=shown.diagnostics, json=True)
    else:
        diagnostics_view.show(shown.diagnostics)
        view.show_hint(shown.hint)
    return shown.exit_code if follow else Exit.DONE
