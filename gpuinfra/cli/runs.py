"""`gpuinfra runs`: list, show and compare runs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from gpuinfra.app.machine_costs import with_costs
from gpuinfra.app.workspace import open_workspace
from gpuinfra.cli import completion
from gpuinfra.cli.main import Group
from gpuinfra.cli.options import start_command
from gpuinfra.diagnostics import Exit

LIMIT = 20
ID = "Run id, its first characters, or `last`."
LAST = "last"
RunArgument = Annotated[str, typer.Argument(autocompletion=completion.runs, metavar="ID", help=ID)]

runs = typer.Typer(cls=Group, invoke_without_command=True, add_completion=False)


@runs.callback()
def list_runs(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Number of runs to list.")] = LIMIT,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            autocompletion=completion.targets,
            metavar="NAME",
            help="Only runs on this target.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """List runs, newest first. Subcommands show or compare single runs."""
    if context.invoked_subcommand is not None:
        return Exit.DONE
    from gpuinfra.app.settlement import fetch_hint, settle_runs
    from gpuinfra.views import runs as view

    settings = start_command(context, reaches_cloud=False)
    workspace = open_workspace(settings)
    now = datetime.now(UTC)
    found = settle_runs(settings, workspace.history.list(limit=limit, target=target))
    view.show(
        with_costs(settings, found.runs, now),
        now,
        json=settings.json,
        unheard=found.unheard,
        unfetched={run.id: hint for run in found.runs if (hint := fetch_hint(settings, run))},
    )
    return Exit.DONE


@runs.command()
def show(
    context: typer.Context, run: Annotated[str, typer.Argument(autocompletion=completion.runs, metavar="ID", help=ID)]
) -> int:
    """Show all details of a run."""
    from gpuinfra.app.settlement import fetch_hint, settle_runs
    from gpuinfra.views import runs as view

    settings = start_command(context, reaches_cloud=False)
    workspace = open_workspace(settings)
    settled = settle_runs(settings, [workspace.history.find(run)])
    (found,) = with_costs(settings, settled.runs, datetime.now(UTC))
    view.show_one(
        found,
        workspace.run_folder(found.id),
        json=settings.json,
        unheard=found.id in settled.unheard,
        unfetched=fetch_hint(settings, found),
    )
    return Exit.DONE


@runs.command()
def compare(
    context: typer.Context,
    a: Annotated[str, typer.Argument(autocompletion=completion.runs, metavar="A", help=ID)],
    b: Annotated[str, typer.Argument(autocompletion=completion.runs, metavar="B", help="The run to compare with.")],
) -> int:
    """Show the differences of two runs: command, target, result and outputs."""
    from gpuinfra.app.runs import compare_runs
    from gpuinfra.views import runs as view

    settings = start_command(context, reaches_cloud=False)
    one, other, files = compare_runs(settings, a, b)
    view.show_comparison(one, other, files, json=settings.json)
    return Exit.DONE
