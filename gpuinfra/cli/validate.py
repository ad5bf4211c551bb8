"""`gpuinfra validate`: every problem of every spec, without asking Azure anything."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import begin
from gpuinfra.diagnostics import Exit


def validate(
    context: typer.Context,
    specs: Annotated[list[str], typer.Argument(metavar="SPEC", help="Files and directories; - is standard input.")],
) -> int:
    """Check specs: all problems in one pass, each with its place and a fix. Nothing is sent to Azure."""
    from gpuinfra.app.machines import validate as load_all
    from gpuinfra.views import specs as view

    settings = begin(context, reaches_cloud=False)
    loaded = load_all(specs)
    view.show(loaded.specs, loaded.diagnostics, json=settings.json)
    return Exit.USAGE if loaded.diagnostics else Exit.DONE
