"""`gpuinfra outputs`: fetch, list or copy a job's outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.cli.runs import LAST, RunArgument


def outputs(
    context: typer.Context,
    run: RunArgument = LAST,
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="Copy the outputs to this folder, which is created.", show_default=False),
    ] = None,
    list_files: Annotated[bool, typer.Option("--list", help="List the files with their sizes.")] = False,
) -> int:
    """Fetch a job's missing outputs; then print their folder, list them, or copy them."""
    from gpuinfra.app.outputs import outputs as fetch
    from gpuinfra.views import runs as view

    settings = start_command(context)
    with open_frontend(settings) as frontend:
        found = fetch(settings, run, folder, frontend)
    view.show_outputs(found, list_files=list_files, json=settings.json)
    return found.exit_code
