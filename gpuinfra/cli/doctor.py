"""`gpuinfra doctor`: whether everything is there that machines need, and that switches them off."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import begin, frontend
from gpuinfra.diagnostics import Exit


def doctor(
    context: typer.Context,
    machines: Annotated[
        list[str] | None,
        typer.Argument(metavar="MACHINE", help="Machines, by name, target or spec; all if left out."),
    ] = None,
) -> int:
    """Look for what is wrong: login, rights, keys, clock, and whether each machine will be switched off by itself."""
    from gpuinfra.app.doctor import examine
    from gpuinfra.models.checks import Verdict
    from gpuinfra.views import doctor as view

    settings = begin(context, needs_state=False)
    with frontend(settings) as progress:
        examination = examine(settings, machines or [], progress)
    view.show(examination, json=settings.json)
    return Exit.FAILED if examination.verdict is Verdict.PROBLEM else Exit.DONE
