"""`gpuinfra import`: a project of Azure ML Workbench becomes a spec."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from gpuinfra.app.init import DEFAULT
from gpuinfra.cli.options import begin, frontend

STDOUT = "-"


def import_project(
    context: typer.Context,
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="The project's folder, with aml_config in it.")],
    target: Annotated[
        str | None,
        typer.Option(
            "--target", metavar="NAME", help="The target to take, where there are several.", show_default=False
        ),
    ] = None,
    region: Annotated[
        str | None,
        typer.Option("--region", metavar="REGION", help="Azure's region, which no project says.", show_default=False),
    ] = None,
    size: Annotated[
        str | None,
        typer.Option("--size", metavar="SIZE", help="The machine's size, which no project says.", show_default=False),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The machine's name, if not after the target.", show_default=False),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", metavar="FILE", help="The spec's file, not the project's gpu.yaml; - is stdout."),
    ] = None,
) -> None:
    """Make a spec of a project of Azure ML Workbench, and list what has no equivalent. The project is not changed."""
    from gpuinfra.app.files import write_file
    from gpuinfra.app.import_project import import_project as make_spec
    from gpuinfra.views import importing as view

    settings = begin(context, reaches_cloud=False)
    root, imported, spec = make_spec(project, target, region, size, name)
    file = None if output == STDOUT else Path(output) if output else root / DEFAULT
    if file is not None:
        write_file(file, imported.spec_text, settings, frontend(settings), project=root)
    hint = f"gpuinfra validate {shlex.quote(str(file))}, then: gpuinfra lint {shlex.quote(str(root))}"
    view.show(imported, spec, file, hint, json=settings.json)
