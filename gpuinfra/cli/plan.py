"""`gpuinfra plan`: what `up` would do. Nothing is written."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import begin, frontend
from gpuinfra.diagnostics import Exit


def plan(
    context: typer.Context,
    specs: Annotated[list[str], typer.Argument(metavar="SPEC", help="Files and directories; - is standard input.")],
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="Leave with 3 when there is something to do.")
    ] = False,
) -> int:
    """Compare specs with Azure: what would be added, changed, replaced or destroyed, and what it costs."""
    from gpuinfra.app.plan import make_plans
    from gpuinfra.views import plan as view

    settings = begin(context)
    with frontend(settings) as progress:
        plans = make_plans(settings, specs, progress)
    view.show(plans, json=settings.json)
    pending = detailed_exitcode and any(not each.is_empty for each in plans)
    return Exit.PENDING if pending else Exit.DONE
