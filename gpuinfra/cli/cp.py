"""`gpuinfra cp`: copy files between this computer and a machine."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import start_command
from gpuinfra.cli.ssh import hand_over


def cp(
    context: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A file or folder: a path, or NAME:PATH.")],
    destination: Annotated[str, typer.Argument(metavar="DESTINATION", help="Where to copy it: NAME:PATH, or a path.")],
) -> None:
    """Copy a file or folder from or to a machine, with its verified host key."""
    from gpuinfra.app.ssh import copy_command
    from gpuinfra.views import json_output

    settings = start_command(context)
    target, command = copy_command(settings, source, destination)
    if settings.json:
        json_output.show({"name": target.machine, "target": target.as_json(), "command": command})
    else:
        hand_over(command)
