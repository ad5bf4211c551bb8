"""`gpuinfra doctor`: check everything that machines need, and everything that stops them."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli import completion
from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.diagnostics import Exit


def doctor(
    context: typer.Context,
    machines: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completion.machines,
            metavar="MACHINE",
            help="Machine names, targets or specs. Default: all machines.",
        ),
    ] = None,
) -> int:
    """Check login, permissions, keys and clock, and whether each machine will be deallocated automatically."""
    from gpuinfra.app.doctor import examine
    from gpuinfra.models.health import CheckStatus
    from gpuinfra.views import doctor as view

    settings = start_command(context, needs_state=False)
    with open_frontend(settings) as frontend:
        examination = examine(settings, machines or [], frontend)
    view.show(examination, json=settings.json)
    return Exit.FAILED if examination.verdict is CheckStatus.PROBLEM else Exit.DONE
