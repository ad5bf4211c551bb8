"""`gpuinfra lint`: what is wrong with a project's files before anything runs, and how to mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuinfra.cli.options import begin
from gpuinfra.diagnostics import Exit, Severity


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
    from gpuinfra.app.lint import lint as check
    from gpuinfra.views import lint as view

    settings = begin(context, reaches_cloud=False)
    found, outcome = check(settings, projects or [], fix=fix)
    view.show(found, outcome, json=settings.json)
    severities = {finding.diagnostic.severity for finding in outcome.findings}
    return Exit.FAILED if Severity.ERROR in severities or (strict and severities) else Exit.DONE
