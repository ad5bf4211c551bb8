"""`gpuinfra reap`: stop every machine that should be off."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from gpuinfra.cli.options import open_frontend, start_command


def reap(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what reap would do, without changes.")] = False,
    specs: Annotated[
        str | None,
        typer.Option("--specs", metavar="DIR", help="Folder of specs in git, to find hours and removed specs."),
    ] = None,
    start: Annotated[
        bool, typer.Option("--start", help="Also start machines whose hours have begun. Needs --specs.")
    ] = False,
    delete: Annotated[
        bool,
        typer.Option("--delete", help="Delete machines whose specs were removed, and disks without a machine."),
    ] = False,
    grace: Annotated[
        str,
        typer.Option(
            "--grace", metavar="DURATION", help="Time between the removal of a spec and the stop of its machine."
        ),
    ] = "24h",
    require_clean: Annotated[
        bool,
        typer.Option("--require-clean", help="Ignore specs that are not committed, or not on the default branch."),
    ] = False,
) -> int:
    """Deallocate every machine that should be off, delete resources without a machine, and verify it."""
    from gpuinfra.app.reap import ReapOptions
    from gpuinfra.app.reap import reap as run_reap
    from gpuinfra.app.settings import grace_of
    from gpuinfra.views import reap as view

    settings = start_command(context, needs_state=False)
    options = ReapOptions(
        specs,
        timedelta(seconds=grace_of(grace)),
        starts=start,
        deletes=delete,
        dry_run=dry_run,
        requires_clean=require_clean,
    )
    with open_frontend(settings) as frontend:
        reaped, code = run_reap(settings, options, frontend)
    view.show(reaped, json=settings.json)
    return code
