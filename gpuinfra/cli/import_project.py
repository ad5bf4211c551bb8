"""`gpuinfra import`: create a spec from an Azure ML Workbench project."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from gpuinfra.app.init import DEFAULT
from gpuinfra.cli.options import open_frontend, start_command

STDOUT = "-"


def import_project(
    context: typer.Context,
    project: Annotated[
        Path, typer.Argument(metavar="PROJECT", help="The project's folder, which contains aml_config.")
    ],
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="NAME", help="The target to import, if the project has several.", show_default=False
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option("--region", metavar="REGION", help="Azure region for the spec.", show_default=False),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="SIZE", help="VM size for the spec.", show_default=False),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Machine name. Default: after the target.", show_default=False),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "--output", metavar="FILE", help="Spec file to write; - for stdout. Default: gpu.yaml in the project."
        ),
    ] = None,
) -> None:
    """Create a spec from an Azure ML Workbench project, and list what has no equivalent."""
    from gpuinfra.app.import_project import import_project as make_spec
    from gpuinfra.app.workspace import write_file
    from gpuinfra.views import files as view

    settings = start_command(context, reaches_cloud=False)
    root, imported, spec = make_spec(project, target, region, size, name)
    file = None if output == STDOUT else Path(output) if output else root / DEFAULT
    if file is not None:
        write_file(file, imported.spec_text, settings, open_frontend(settings), project=root)
    hint = f"gpuinfra validate {shlex.quote(str(file))}, then: gpuinfra lint {shlex.quote(str(root))}"
    view.show_import(imported, spec, file, hint, json=settings.json)
