"""`gpuinfra plan`: show what `up` would do."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import SpecsArgument, open_frontend, start_command
from gpuinfra.diagnostics import Exit


def plan(
    context: typer.Context,
    specs: SpecsArgument = None,
    detailed_exitcode: Annotated[
        bool, typer.Option("--detailed-exitcode", help="Exit with 3 if Azure differs, except that a machine is off.")
    ] = False,
) -> int:
    """Compare specs with Azure: show what `up` would add, change, replace or destroy, and the cost."""
    from gpuinfra.app.plan import make_plans
    from gpuinfra.views import plan as view

    settings = start_command(context)
    with open_frontend(settings) as frontend:
        result = make_plans(settings, specs or [], frontend)
    view.show(result.report, result.errors.diagnostics, json=settings.json)
    if result.ended_by:
        raise result.ended_by
    pending = detailed_exitcode and result.report.is_pending
    return result.errors.exit_code() or (Exit.PENDING if pending else Exit.DONE)
