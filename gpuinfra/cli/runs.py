"""`gpuinfra runs`: what is remembered of jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.app.accounts import with_costs
from gpuinfra.app.settings import Settings
from gpuinfra.cli.group import Group
from gpuinfra.cli.options import begin
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.models.run import Run
    from gpuinfra.runner.results.history import History

LIMIT = 20
ID = "A run's id, the beginning of one, or `last`."

runs = typer.Typer(cls=Group, invoke_without_command=True, add_completion=False)


class Remembered:
    """A workspace's history, for reading: nothing is made where there is none."""

    def __init__(self, settings: Settings) -> None:
        from gpuinfra.runner.results.history import History
        from gpuinfra.workspace import STATE, find_workspace

        self.state = find_workspace(settings.workspace) / STATE
        self.history: History = History(self.state)

    def folder(self, run: Run) -> Path:
        """What is kept here of a run: its log, its outputs."""
        from gpuinfra.runner.results.history import run_folder

        return run_folder(self.state, run.id)

    def is_unfollowed(self, run: Run) -> bool:
        """Whether it may go on though nobody here listens: whoever did was killed, or detached."""
        from gpuinfra.runner.jobs.log import LogFile

        return not run.state.is_over and not LogFile(self.folder(run) / "log").is_followed


@runs.callback()
def list_runs(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="How many, the newest first.")] = LIMIT,
    target: Annotated[
        str | None, typer.Option("--target", metavar="NAME", help="Only those on this target.", show_default=False)
    ] = None,
) -> int:
    """List runs, the newest first; with a command, look at some of them."""
    if context.invoked_subcommand is not None:
        return Exit.DONE
    from gpuinfra.app.settlement import fetch_hint, settle_runs
    from gpuinfra.views import runs as view

    settings = begin(context, reaches_cloud=False)
    remembered = Remembered(settings)
    now = datetime.now(UTC)
    found = settle_runs(settings, remembered.history.list(limit=limit, target=target))
    view.show(
        with_costs(settings, found.runs, now),
        now,
        json=settings.json,
        unheard=found.unheard,
        unfetched={run.id: hint for run in found.runs if (hint := fetch_hint(settings, run))},
    )
    return Exit.DONE


@runs.command()
def show(context: typer.Context, run: Annotated[str, typer.Argument(metavar="ID", help=ID)]) -> int:
    """Show all that is remembered of a run."""
    from gpuinfra.app.settlement import fetch_hint, settle_runs
    from gpuinfra.views import runs as view

    settings = begin(context, reaches_cloud=False)
    remembered = Remembered(settings)
    settled = settle_runs(settings, [remembered.history.find(run)])
    (found,) = with_costs(settings, settled.runs, datetime.now(UTC))
    view.show_one(
        found,
        remembered.folder(found),
        json=settings.json,
        unheard=found.id in settled.unheard,
        unfetched=fetch_hint(settings, found),
    )
    return Exit.DONE


@runs.command()
def compare(
    context: typer.Context,
    a: Annotated[str, typer.Argument(metavar="A", help=ID)],
    b: Annotated[str, typer.Argument(metavar="B", help="The other run.")],
) -> int:
    """Show in what two runs differ: what they ran and where, how it went, and what they wrote."""
    from gpuinfra.runner.results.kept import compare as compare_files
    from gpuinfra.views import comparison as view

    settings = begin(context, reaches_cloud=False)
    remembered = Remembered(settings)
    one, other = with_costs(settings, [remembered.history.find(each) for each in (a, b)], datetime.now(UTC))
    try:
        files = compare_files(*(remembered.folder(run) / "outputs" for run in (one, other)))
    except OSError as error:
        note = f"`{error.filename}`: {error.strerror}"
        raise Problem(Diagnostic(Code.FILE_UNREADABLE, "file cannot be read", note=note)) from error
    view.show(one, other, files, json=settings.json)
    return Exit.DONE
