"""`gpuinfra lease`: until when a machine may be on; more of it, or none."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import begin, frontend
from gpuinfra.diagnostics import Exit


def lease(
    context: typer.Context,
    machine: Annotated[str, typer.Argument(metavar="MACHINE", help="A machine, by its name, its target or its spec.")],
    extend: Annotated[
        str | None,
        typer.Option("--extend", metavar="TIME", help="Let it end so much later, as 2h.", show_default=False),
    ] = None,
    release: Annotated[
        bool, typer.Option("--release", help="Let it end now; where the spec has hours, with them.")
    ] = False,
) -> int:
    """Show until when a machine may be on, why then, and what it costs until then; or change it."""
    from gpuinfra.app.lease import lease as change_lease
    from gpuinfra.views import lease as view

    settings = begin(context, needs_state=False)
    with frontend(settings) as progress:
        state, in_vain = change_lease(settings, machine, extend, progress, release=release)
    view.show(state, json=settings.json)
    return Exit.FAILED if in_vain else Exit.DONE
