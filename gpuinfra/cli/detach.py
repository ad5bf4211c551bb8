"""`gpuinfra detach`: remove a target from the workspace."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli import completion
from gpuinfra.cli.options import open_frontend, start_command


def detach(
    context: typer.Context,
    name: Annotated[str, typer.Argument(autocompletion=completion.targets, metavar="NAME", help="The target's name.")],
) -> None:
    """Remove a target's two files, and its password from the keyring. The machine is not changed."""
    from gpuinfra.app.detach import detach as remove_target
    from gpuinfra.views import targets as view

    settings = start_command(context, reaches_cloud=False)
    view.show_detached(remove_target(settings, name, open_frontend(settings)), json=settings.json)
