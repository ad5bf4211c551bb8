"""What a machine itself knows of runs, whoever sent them: other workspaces have histories of their own."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gpuinfra.cli.options import Settings
from gpuinfra.diagnostics import Problem

if TYPE_CHECKING:
    from runner.watch import Neighbour

# Whoever wants to be rid of a machine is not kept for long by one that does not answer.
CONNECT_SECONDS = 10.0


def runs_on(settings: Settings, name: str) -> list[Neighbour]:
    """All runs that the machine of this name knows; none where it is off, or cannot be asked."""
    from gpuinfra.cli.machines import target_named
    from runner.jobs.port import JobError
    from runner.machine.connection import ConnectError
    from runner.machine.far import FarError
    from runner.machine.link import link_to
    from runner.watch import runs_there

    with contextlib.suppress(Problem, ConnectError, FarError, JobError):
        link = link_to(target_named(settings, name), seconds=CONNECT_SECONDS)
        try:
            return runs_there(link.far)
        finally:
            link.drop()
    return []
