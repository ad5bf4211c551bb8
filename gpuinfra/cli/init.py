"""`gpuinfra init`: a spec to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuinfra.cli.options import begin, frontend


def init(
    context: typer.Context,
    path: Annotated[
        Path | None,
        typer.Argument(metavar="PATH", help="File to write, or a directory for gpu.yaml.", show_default=False),
    ] = None,
) -> None:
    """Write a commented starter spec, and beside it the schema that editors check it with."""
    from gpuinfra.app.init import init as write_starter
    from gpuinfra.views import document, files

    settings = begin(context, reaches_cloud=False)
    written = write_starter(settings, path, frontend(settings))
    if settings.json:
        document.show({"files": [str(file) for file in written]})
    else:
        files.show_written(written, hint=f"edit {written[0].name}, then: gpuinfra validate {written[0]}")
