"""`gpuinfra lint`: find problems in a project's files before a job runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpuinfra.cli.options import start_command
from gpuinfra.diagnostics import Exit, Severity


def lint(
    context: typer.Context,
    projects: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PROJECT",
            help="Folders to search for projects. Default: the workspace.",
            show_default=False,
        ),
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Apply safe fixes.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Also fail on warnings.")] = False,
) -> int:
    """Check targets, run configurations and environments for failures, CPU-only packages and exposed secrets."""
    from gpuinfra.app.lint import lint as check
    from gpuinfra.views import lint as view

    settings = start_command(context, reaches_cloud=False)
    found, outcome = check(settings, projects or [], fix=fix)
    view.show(found, outcome, json=settings.json)
    severities = {finding.diagnostic.severity for finding in outcome.findings}
    return Exit.FAILED if Severity.ERROR in severities or (strict and severities) else Exit.DONE
