"""`gpuinfra targets`: the places where jobs can run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gpuinfra.app.settings import Settings
from gpuinfra.cli.options import begin, frontend
from gpuinfra.diagnostics import Exit, Severity

if TYPE_CHECKING:
    from gpuinfra.models.reachability import Reachability
    from gpuinfra.models.target import Target

SECONDS = 5.0


def targets(
    context: typer.Context,
    no_check: Annotated[bool, typer.Option("--no-check", help="Read the files, and call no machine.")] = False,
) -> int:
    """List the workspace's targets: type, address, GPU, image, and whether they answer."""
    from gpuinfra.views import targets as view
    from gpuinfra.workbench.targets import read_targets
    from gpuinfra.workspace import find_workspace

    settings = begin(context, reaches_cloud=False)
    workspace = find_workspace(settings.workspace)
    found = read_targets(workspace)
    listed = sorted(found.targets, key=lambda target: target.name)
    reached = {} if no_check else _reach(settings, [target for target in listed if target.address])
    view.show(listed, reached, found.diagnostics, str(workspace), json=settings.json)
    failed = any(diagnostic.severity is Severity.ERROR for diagnostic in found.diagnostics)
    return Exit.FAILED if failed else Exit.DONE


def _reach(settings: Settings, remote: Sequence[Target]) -> dict[str, Reachability]:
    from gpuinfra.runner.machine.reach import reachability

    if not remote:
        return {}
    with frontend(settings) as progress:
        counted = "1 machine" if len(remote) == 1 else f"{len(remote)} machines"
        progress.begin("targets", f"calling {counted}")
        found = reachability(remote, SECONDS)
        answering = sum(reach.state == "yes" for reach in found)
        progress.end("targets", f"{answering} of {counted} can be used")
    return {target.name: reach for target, reach in zip(remote, found, strict=True)}
