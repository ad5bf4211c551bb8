"""`gpuinfra prune`: remove old runs of the workspace, or what jobs left on a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.cli import completion
from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.diagnostics import Exit

if TYPE_CHECKING:
    from gpuinfra.app.settings import Settings


def prune(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET",
            help="A target or machine. Default: only the runs in this workspace.",
            autocompletion=completion.machines,
            show_default=False,
        ),
    ] = None,
    older_than: Annotated[
        str,
        typer.Option("--older-than", metavar="TIME", help="Only what ended or was used longer ago, such as 7d or 12h."),
    ] = "30d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List everything with its size, and delete nothing.")
    ] = False,
) -> int:
    """Delete old runs of the workspace, or old files and images of jobs on a machine, after a question."""
    from gpuinfra.app.settings import seconds_of

    settings = start_command(context, reaches_cloud=target is not None)
    seconds = seconds_of("--older-than", older_than)
    if target is not None:
        return _prune_target(settings, target, seconds, dry_run=dry_run)
    from gpuinfra.app.prune import find_old_runs, remove_runs
    from gpuinfra.views import prune as view

    found = find_old_runs(settings, seconds)
    if not settings.json:
        view.show_found(found, older_than)
    if found and not dry_run:
        with open_frontend(settings) as frontend:
            found = remove_runs(settings, found, seconds, frontend)
    view.show_removed(found, is_removed=not dry_run, json=settings.json)
    return Exit.DONE


def _prune_target(settings: Settings, name: str, seconds: float, *, dry_run: bool) -> int:
    from gpuinfra.app.storage import list_storage, open_storage, remove_storage
    from gpuinfra.views import storage as view

    removed = None
    with open_frontend(settings) as frontend, open_storage(settings, name, seconds, frontend) as storage:
        found = list_storage(storage, frontend)
        if not settings.json:
            view.show_found(found)
        if not dry_run and not all(each.kept for each in found):
            removed = remove_storage(settings, storage, found, frontend)
    view.show_removed(name, found, removed, json=settings.json)
    return Exit.DONE
