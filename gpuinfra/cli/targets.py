"""`gpuinfra targets`: list where jobs can run."""

from __future__ import annotations

from typing import Annotated

import typer

from gpuinfra.cli.options import open_frontend, start_command
from gpuinfra.diagnostics import Exit, Severity


def targets(
    context: typer.Context,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not connect to the machines.")] = False,
) -> int:
    """List the workspace's targets: type, address, GPU, image, and whether they answer."""
    from gpuinfra.app.targets import call_targets, list_targets
    from gpuinfra.views import targets as view

    settings = start_command(context, reaches_cloud=False)
    found = list_targets(settings)
    listed = sorted(found.targets, key=lambda target: target.name)
    with open_frontend(settings) as frontend:
        reached = {} if no_check else call_targets(listed, frontend)
    view.show(listed, reached, found.diagnostics, str(settings.workspace), json=settings.json)
    failed = any(diagnostic.severity is Severity.ERROR for diagnostic in found.diagnostics)
    return Exit.FAILED if failed else Exit.DONE
