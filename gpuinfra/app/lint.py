"""Check targets, run configurations and environments of projects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Exit, problem
from gpuinfra.lint.fix import LintResult, check_projects, fix_projects
from gpuinfra.workbench.project import find_projects


def lint(settings: Settings, projects: Sequence[Path], *, fix: bool) -> tuple[list[Path], LintResult]:
    """Return the projects in these folders, or in the workspace, and their problems."""
    folders = list(projects) or [settings.folder]
    found = _find(folders)
    # A link may lead out of a project that comes from others.
    own = [folder for folder in folders if not folder.is_symlink()]
    return found, fix_projects(found, own) if fix else check_projects(found)


def _find(folders: list[Path]) -> list[Path]:
    """Return every project in these folders, without duplicates. Raise Problem if there is none."""
    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            note = f"`{folder}` is not a directory"
            raise problem(Code.FILE_NOT_FOUND, "no such project", note, exit_code=Exit.USAGE)
        for root in find_projects(folder):
            found.setdefault(root.resolve(), root)
    if found:
        return list(found.values())
    listed = ", ".join(f"`{folder}`" for folder in folders)
    raise problem(
        Code.NO_PROJECT_FOUND,
        "no project found",
        f"there is no folder `aml_config` with targets, run configurations or environments in {listed}",
        "name a project's folder: gpuinfra lint PROJECT",
        exit_code=Exit.USAGE,
    )
