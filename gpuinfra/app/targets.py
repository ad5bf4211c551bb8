"""List the targets for jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.models.target import Reachability, Target
    from gpuinfra.workbench.targets import Targets

SECONDS = 5.0


def list_targets(settings: Settings) -> Targets:
    """Return the workspace's targets, and errors in their files."""
    from gpuinfra.workbench.targets import read_targets

    return read_targets(settings.folder)


def call_targets(targets: Sequence[Target], frontend: Frontend) -> dict[str, Reachability]:
    """Return for each target with an address whether it answers."""
    from gpuinfra.runner.connection.reachability import reachability

    remote = [target for target in targets if target.address and not target.is_here]
    if not remote:
        return {}
    counted = "1 machine" if len(remote) == 1 else f"{len(remote)} machines"
    frontend.begin("targets", f"calling {counted}")
    found = reachability(remote, SECONDS)
    answering = sum(reach.state == "yes" for reach in found)
    frontend.end("targets", f"{answering} of {counted} can be used")
    return {target.name: reach for target, reach in zip(remote, found, strict=True)}
