"""`gpuinfra validate`: check specs offline."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import start_command
from gpuinfra.diagnostics import Exit


def validate(
    context: typer.Context,
    specs: Annotated[list[str], typer.Argument(metavar="SPEC", help="Spec files or folders; - for standard input.")],
) -> int:
    """Check specs without contacting Azure. Shows every problem with its location and a fix."""
    from gpuinfra.app.specs import spec_paths
    from gpuinfra.app.specs import validate as load_all
    from gpuinfra.views import validate as view

    settings = start_command(context, reaches_cloud=False)
    loaded, warnings = load_all(spec_paths(settings, specs))
    view.show(loaded.specs, loaded.diagnostics, warnings, json=settings.json)
    return Exit.USAGE if loaded.diagnostics else Exit.DONE
