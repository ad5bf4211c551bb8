"""`gpuinfra reap`: ends what should have ended, wherever it was forgotten."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from gpuinfra.cli.options import begin, frontend


def reap(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    specs: Annotated[
        str | None,
        typer.Option("--specs", metavar="DIR", help="A folder of specs in git: what they say, and which are gone."),
    ] = None,
    start: Annotated[
        bool, typer.Option("--start", help="Start machines whose hours have begun; needs --specs.")
    ] = False,
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Remove machines whose specs are gone, and disks without a machine, for good."),
    ] = False,
    grace: Annotated[
        str, typer.Option("--grace", metavar="DURATION", help="How long after its spec a machine stays.")
    ] = "24h",
) -> int:
    """Stop every machine of gpuinfra's that should be off, remove what has lost its machine, and prove it."""
    from gpuinfra.app.durations import grace_of
    from gpuinfra.app.reap import ReapOptions
    from gpuinfra.app.reap import reap as run_reap
    from gpuinfra.views import reap as view

    settings = begin(context, needs_state=False)
    options = ReapOptions(specs, timedelta(seconds=grace_of(grace)), starts=start, deletes=delete, dry_run=dry_run)
    with frontend(settings) as progress:
        reaped, code = run_reap(settings, options, progress)
    view.show(reaped, json=settings.json)
    return code
