"""`gpuinfra plan`: show what `up` would do."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.diagnostics import Exit


def plan(
    context: typer.Context,
    specs: Annotated[list[str], typer.Argument(metavar="SPEC", help="Spec files or folders; - for standard input.")],
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="Exit with 3 if there are changes.")
    ] = False,
) -> int:
    """Compare specs with Azure: show what `up` would add, change, replace or destroy, and the cost."""
    from gpuinfra.app.plan import make_plans
    from gpuinfra.views import plan as view

    settings = start_command(context)
    with open_frontend(settings) as frontend:
        plans, errors, ended_by = make_plans(settings, specs, frontend)
    view.show(plans, errors.diagnostics, json=settings.json)
    if ended_by:
        raise ended_by
    pending = detailed_exitcode and any(not each.is_empty for each in plans)
    return errors.exit_code() or (Exit.PENDING if pending else Exit.DONE)
