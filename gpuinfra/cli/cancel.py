"""`gpuinfra cancel`: stop a job."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.app.settings import grace_of
from gpuinfra.app.workspace import open_workspace
from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.cli.runs import LAST, RunArgument
from gpuinfra.diagnostics import Exit


def cancel(
    context: typer.Context,
    run: RunArgument = LAST,
    grace: Annotated[
        str,
        typer.Option(
            "--grace", metavar="TIME", help="Time for the job to end before it is killed, such as `30s` or `5m`."
        ),
    ] = "10s",
) -> int:
    """Stop a job: ask it to end, kill it after the grace period, and fetch its outputs."""
    from gpuinfra.views import job as view

    settings = start_command(context)
    seconds = grace_of(grace)
    workspace = open_workspace(settings)
    found = workspace.history.find(run)
    is_over = found.state.is_over
    if not is_over:
        from gpuinfra.app.cancel import cancel_run
        from gpuinfra.models.run import RunState

        with open_frontend(settings) as frontend:
            found = cancel_run(settings, found, seconds, frontend)
        is_over = found.state is RunState.LOST  # nothing was left to cancel
    view.show_cancelled(found, workspace.run_folder(found.id), was_over=is_over, json=settings.json)
    return Exit.DONE
