"""After Ctrl-C: what there is now, what is billed, and what to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuinfra.models.events import Interrupted

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.machines import CloudSession

LOOK_SECONDS = 3.0


class TerminalClosedError(KeyboardInterrupt):
    """The interrupt that a closed terminal, pipe or SSH session makes: the user did not ask to cancel a job."""


def say_what_exists(reached: CloudSession, name: str, group: str | None, progress: Frontend) -> None:
    """Look once more, and not for long: whoever pressed Ctrl-C wants to leave."""
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.find import stops_at

    reached.cloud.interrupt.clear()
    reached.cloud.grant(LOOK_SECONDS)
    try:
        observed = reached.cloud.observe(name, group)
    except (CloudError, KeyboardInterrupt):
        observed = None
    resources = None if observed is None else [str(part.ref) for part in observed.ours()]
    stops = stops_at(observed) if observed else None
    progress.show(Interrupted(name, resources, stops, simulated=reached.cloud.simulated))
