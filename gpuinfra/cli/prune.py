"""`gpuinfra prune`: remove old runs of the workspace."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.diagnostics import Exit


def prune(
    context: typer.Context,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="TIME", help="Only runs that ended longer ago, such as 7d or 12h.")
    ] = "30d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs and their sizes, and delete nothing.")
    ] = False,
) -> int:
    """Delete old runs of the workspace with their logs and fetched outputs, after a question."""
    from gpuinfra.app.prune import find_old_runs, remove_runs
    from gpuinfra.app.settings import seconds_of
    from gpuinfra.views import prune as view

    settings = start_command(context, reaches_cloud=False)
    seconds = seconds_of("--older-than", older_than)
    found = find_old_runs(settings, seconds)
    if not settings.json:
        view.show_found(found, older_than)
    if found and not dry_run:
        with open_frontend(settings) as frontend:
            found = remove_runs(settings, found, seconds, frontend)
    view.show_removed(found, is_removed=not dry_run, json=settings.json)
    return Exit.DONE
