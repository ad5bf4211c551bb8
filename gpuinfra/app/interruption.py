"""After Ctrl-C: what there is now, what is billed, and what to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuinfra.app.machines import CloudSession
    from gpuinfra.views.progress import ProgressView

LOOK_SECONDS = 3.0


def say_what_exists(reached: CloudSession, name: str, group: str | None, progress: ProgressView) -> None:
    """Look once more, and not for long: whoever pressed Ctrl-C wants to leave."""
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.find import stops_at
    from gpuinfra.views import up as view

    reached.cloud.interrupt.clear()
    reached.cloud.grant(LOOK_SECONDS)
    try:
        observed = reached.cloud.observe(name, group)
    except (CloudError, KeyboardInterrupt):
        observed = None
    with progress.paused():
        parts = None if observed is None else [str(part.ref) for part in observed.ours()]
        stops = stops_at(observed) if observed else None
        view.show_interrupted(name, parts, stops, simulated=reached.cloud.simulated)
