"""`gpuinfra import`: a project of Azure ML Workbench becomes a spec."""

from __future__ import annotations

import shlex
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.app.checked import require
from gpuinfra.cli.init import DEFAULT
from gpuinfra.cli.options import begin
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.models.spec import Spec
    from gpuinfra.workbench.importing import Wishes

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
    from gpuinfra.views import importing as view
    from gpuinfra.workbench.importing import Wishes
    from gpuinfra.workbench.importing import import_project as make
    from gpuinfra.workbench.project import load_project

    settings = begin(context, reaches_cloud=False)
    wishes = Wishes(target, region, size, name)
    _check(wishes)
    root = _root(project)
    imported = make(load_project(root), wishes)
    spec = _loaded(imported.spec_text)
    file = None if output == STDOUT else Path(output) if output else root / DEFAULT
    if file is not None:
        write_file(file, imported.spec_text, settings, project=root)
    hint = f"gpuinfra validate {shlex.quote(str(file))}, then: gpuinfra lint {shlex.quote(str(root))}"
    view.show(imported, spec, file, hint, json=settings.json)


def _check(wishes: Wishes) -> None:
    from gpuinfra.models.names import check_machine_name
    from gpuinfra.models.regions import check_region
    from gpuinfra.models.sizes import check_size

    require(check_region, wishes.region, f"--region {wishes.region}", "import")
    require(check_size, wishes.size, f"--size {wishes.size}", "import")
    require(check_machine_name, wishes.name, f"--name {wishes.name}", "import")


def _root(folder: Path) -> Path:
    """The project's folder, where it or its `aml_config` was named."""
    from gpuinfra.suggest import listed
    from gpuinfra.workbench.project import find_projects

    if not folder.is_dir():
        note, help_line = f"`{folder}` is not a directory", "name the project's folder"
        raise Problem(
            Diagnostic(Code.FILE_NOT_FOUND, "no such project", note=note, help=help_line), exit_code=Exit.USAGE
        )
    found = find_projects(folder)
    first = next(found, None)
    # `aml_config` may be a link, and belongs to the project where it stands, not where it leads.
    if first is not None and first.resolve() in {folder.resolve(), folder.absolute().parent.resolve()}:
        return first
    others = [] if first is None else [str(first), *map(str, islice(found, 9))]
    note = f"there is no folder `aml_config` with targets, run configurations or environments in `{folder}`"
    help_line = f"there is one in {listed(others, 'and in')}" if others else "name a project's folder"
    diagnostic = Diagnostic(Code.NO_PROJECT_FOUND, "no project found", note=note, help=help_line)
    raise Problem(diagnostic, exit_code=Exit.USAGE)


def _loaded(text: str) -> Spec:
    from gpuinfra.load.spec import load_bytes

    loaded = load_bytes(DEFAULT, text.encode("utf-8"))
    if loaded.diagnostics:
        raise Problem(*loaded.diagnostics, exit_code=Exit.USAGE)
    return loaded.specs[0].spec
