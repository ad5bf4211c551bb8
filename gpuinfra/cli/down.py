"""`gpuinfra down`: deallocate or delete machines, and verify it."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli import completion
from gpuinfra.cli.options import open_frontend, start_command


def down(
    context: typer.Context,
    machines: Annotated[
        list[str] | None,
        typer.Argument(
            autocompletion=completion.machines,
            metavar="MACHINE",
            help="Specs, folders of specs, machine names or targets. Default: gpu.yaml, or the workspace's specs.",
            show_default=False,
        ),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Delete the machine and all its resources, including the disk.")
    ] = False,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Time limit for each machine. Default: 45m.")
    ] = None,
) -> int:
    """Deallocate machines, and verify with Azure that billing has stopped. A missing machine counts as off."""
    from gpuinfra.app.down import SECONDS, note_left_on
    from gpuinfra.app.down import down as stop
    from gpuinfra.app.settings import seconds_of
    from gpuinfra.views import receipt as view

    settings = start_command(context, needs_state=False)
    seconds = seconds_of("--timeout", timeout) if timeout else SECONDS
    with open_frontend(settings) as frontend:
        result = stop(settings, machines or [], frontend, delete=delete, seconds=seconds)
    view.show(result.receipts, result.errors.diagnostics, json=settings.json)
    if result.ended_by:
        raise result.ended_by
    with open_frontend(settings) as frontend:
        note_left_on(settings, [named.name for named in result.machines], frontend)
    return result.exit_code
