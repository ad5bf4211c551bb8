"""`gpuinfra exec`: run a command beside a running job."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from gpuinfra.cli import completion
from gpuinfra.cli.options import start_command
from gpuinfra.cli.runs import ID
from gpuinfra.cli.ssh import hand_over


def exec_job(
    context: typer.Context,
    run: Annotated[str, typer.Argument(autocompletion=completion.runs, metavar="ID", help=ID)],
    words: Annotated[
        list[str] | None, typer.Argument(metavar="CMD", help="Command to run, after --.", show_default=False)
    ] = None,
) -> None:
    """Run a command beside a job: in its container, or in its working directory with its environment."""
    from gpuinfra.app.ssh import exec_command
    from gpuinfra.views import json_output

    settings = start_command(context, reaches_cloud=False)
    has_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    command = exec_command(settings, run, words or (), terminal=has_terminal)
    if settings.json:
        json_output.show({"run": run, "command": command})
    else:
        hand_over(command)
