"""`gpuinfra init`: write a starter spec."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from gpuinfra.cli.options import open_frontend, start_command


def init(
    context: typer.Context,
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="File to write, or folder for gpu.yaml.", show_default=False),
    ] = None,
) -> None:
    """Write a commented starter spec, and a JSON Schema for editors next to it."""
    from gpuinfra.app.init import init as write_starter
    from gpuinfra.views import files, json_output

    settings = start_command(context, reaches_cloud=False, searches=False)
    written = write_starter(settings, path, open_frontend(settings))
    if settings.json:
        json_output.show({"files": [str(file) for file in written]})
    else:
        files.show_written(written, hint=f"edit {written[0].name}, then: gpuinfra validate {quote(str(written[0]))}")
