"""`gpuinfra forward`: reach a port of a machine from this computer."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Annotated

import typer

from gpuinfra.cli import completion
from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.diagnostics import Exit


def forward(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.machines, metavar="NAME", help="The machine's name, its spec or a target."
        ),
    ],
    port: Annotated[
        str, typer.Argument(metavar="PORT", help="Port on the machine; LOCAL:PORT for another one on this computer.")
    ],
) -> int:
    """Forward a port of this computer to a machine until Ctrl-C."""
    from gpuinfra.app.forward import forward as forward_port
    from gpuinfra.views import forward as view

    settings = start_command(context)
    # Ctrl-C is how forwarding ends.
    with open_frontend(settings) as frontend, suppress(KeyboardInterrupt):
        forward_port(settings, name, port, frontend, partial(view.show, json=settings.json))
    return Exit.DONE
