"""`gpuinfra lease`: show, extend or end a machine's lease."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli import completion
from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.diagnostics import Exit


def lease(
    context: typer.Context,
    machine: Annotated[
        str,
        typer.Argument(autocompletion=completion.machines, metavar="MACHINE", help="A machine name, target or spec."),
    ],
    extend: Annotated[
        str | None,
        typer.Option(
            "--extend", metavar="TIME", help="End the lease later by this time, such as 2h.", show_default=False
        ),
    ] = None,
    release: Annotated[
        bool, typer.Option("--release", help="End the lease now; if the spec has hours, at their end.")
    ] = False,
) -> int:
    """Show when a machine's lease ends, why, and the cost until then; or change it."""
    from gpuinfra.app.lease import lease as change_lease
    from gpuinfra.views import lease as view

    settings = start_command(context, needs_state=False)
    with open_frontend(settings) as frontend:
        state, in_vain = change_lease(settings, machine, extend, frontend, release=release)
    view.show(state, json=settings.json)
    return Exit.FAILED if in_vain else Exit.DONE
