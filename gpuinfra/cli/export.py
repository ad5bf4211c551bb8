"""`gpuinfra export`: describe a machine in the format of other tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpuinfra.cli import completion
from gpuinfra.cli.options import open_frontend, start_command


def export(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            autocompletion=completion.machines, metavar="NAME", help="The machine's name; for arm also its spec file."
        ),
    ],
    form: Annotated[
        str,
        typer.Option(
            "--format", metavar="FORMAT", help="One of arm, ssh-config and docker-context.", show_default=False
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="Write to this file instead of stdout.", show_default=False),
    ] = None,
) -> None:
    """Export a machine as an ARM template, a block for ~/.ssh/config, or a Docker context."""
    from gpuinfra.app.export import ARM, DOCKER_CONTEXT, check_format, usage
    from gpuinfra.app.export import export as make_export
    from gpuinfra.app.workspace import write_file
    from gpuinfra.views import files as view
    from gpuinfra.views.json_output import to_text

    check_format(form)
    # A template needs only the spec, and no account.
    settings = start_command(context, reaches_cloud=form != ARM)
    if form == DOCKER_CONTEXT and output is None and not settings.json and sys.stdout.isatty():
        raise usage("a Docker context is a binary archive", "write it to a file with `--output FILE`")
    with open_frontend(settings) as frontend:
        made = make_export(settings, name, form, frontend)
    content = to_text(made.content, indent=2) if isinstance(made.content, dict) else made.content
    if output:
        write_file(output, content, settings, frontend)
    view.show_notes(made.notes)
    if output:
        view.show_export_file(made.name, form, output, made.hint(output), json=settings.json)
    else:
        view.show_export(made.name, form, content, json=settings.json)
