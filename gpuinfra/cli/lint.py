"""`gpuinfra lint`: what is wrong with a project's files before anything runs, and how to mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuinfra.cli.options import begin
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem, Severity


def lint(
    context: typer.Context,
    projects: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PROJECT",
            help="Folders; every project at and below each. The workspace if left out.",
            show_default=False,
        ),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what has one safe fix; the rest is left as it is.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings, too.")] = False,
) -> int:
    """Check targets, run configurations and environments: what would fail, or run on the CPU, or leak a secret."""
    from gpuinfra.lint.fix import check_projects, fix_projects
    from gpuinfra.views import lint as view
    from gpuinfra.workspace import find_workspace

    settings = begin(context, reaches_cloud=False)
    found = _find(projects or [find_workspace(settings.workspace)])
    outcome = fix_projects(found) if fix else check_projects(found)
    view.show(found, outcome, json=settings.json)
    severities = {finding.diagnostic.severity for finding in outcome.findings}
    return Exit.FAILED if Severity.ERROR in severities or (strict and severities) else Exit.DONE


def _find(folders: list[Path]) -> list[Path]:
    """Every project in these folders, each once."""
    from gpuinfra.workbench.project import find_projects

    found: dict[Path, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            note = f"`{folder}` is not a directory"
            raise Problem(Diagnostic(Code.FILE_NOT_FOUND, "no such project", note=note), exit_code=Exit.USAGE)
        for root in find_projects(folder):
            found.setdefault(root.resolve(), root)
    if found:
        return list(found.values())
    listed = ", ".join(f"`{folder}`" for folder in folders)
    diagnostic = Diagnostic(
        Code.NO_PROJECT_FOUND,
        "no project found",
        note=f"there is no folder `aml_config` with targets, run configurations or environments in {listed}",
        help="name a project's folder: gpuinfra lint PROJECT",
    )
    raise Problem(diagnostic, exit_code=Exit.USAGE)
