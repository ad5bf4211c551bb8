"""Convert an Azure ML Workbench project to a spec."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from gpuinfra.app.init import DEFAULT
from gpuinfra.app.settings import require
from gpuinfra.diagnostics import Code, Exit, Problem, listed, problem
from gpuinfra.models.names import check_machine_name, check_region
from gpuinfra.models.sizes import check_size
from gpuinfra.models.spec import Spec
from gpuinfra.parse.spec import load_bytes
from gpuinfra.workbench.project import find_projects, load_project
from gpuinfra.workbench.project_import import ImportOptions, ImportResult
from gpuinfra.workbench.project_import import import_project as make


def import_project(
    folder: Path, target: str | None, region: str | None, size: str | None, name: str | None
) -> tuple[Path, ImportResult, Spec]:
    """Return the project's folder, the result of the import, and its spec. The project is not changed."""
    options = ImportOptions(target, region, size, name)
    _check(options)
    root = _root(folder)
    imported = make(load_project(root), options)
    return root, imported, _loaded(imported.spec_text)


def _check(options: ImportOptions) -> None:
    require(check_region, options.region, f"--region {options.region}", "import")
    require(check_size, options.size, f"--size {options.size}", "import")
    require(check_machine_name, options.name, f"--name {options.name}", "import")


def _root(folder: Path) -> Path:
    """Return the project's folder, given it or its `aml_config`."""
    if not folder.is_dir():
        note, help_line = f"`{folder}` is not a directory", "name the project's folder"
        raise problem(Code.FILE_NOT_FOUND, "no such project", note, help_line, exit_code=Exit.USAGE)
    found = find_projects(folder)
    first = next(found, None)
    # `aml_config` may be a link. It belongs to the project that contains the link.
    if first is not None and first.resolve() in {folder.resolve(), folder.absolute().parent.resolve()}:
        return first
    others = [] if first is None else [str(first), *map(str, islice(found, 9))]
    note = f"there is no folder `aml_config` with targets, run configurations or environments in `{folder}`"
    help_line = f"there is one in {listed(others, 'and in')}" if others else "name a project's folder"
    raise problem(Code.NO_PROJECT_FOUND, "no project found", note, help_line, exit_code=Exit.USAGE)


def _loaded(text: str) -> Spec:
    loaded = load_bytes(DEFAULT, text.encode("utf-8"))
    if loaded.diagnostics:
        raise Problem(*loaded.diagnostics, exit_code=Exit.USAGE)
    return loaded.specs[0].spec
