"""What `up` would do. Nothing is written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuinfra.app.machines import bringing, explained, load_specs, reach

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.models.plan import Plan

SECONDS = 300.0


def make_plans(settings: Settings, paths: Sequence[str], progress: Frontend) -> list[Plan]:
    """Compare the specs in the files with Azure."""
    plans = []
    for located in load_specs(paths):
        spec = located.spec
        reached = reach(settings, spec.subscription, SECONDS, progress)
        with explained(f"planning {spec.name}"):
            plans.append(bringing(reached, located, progress, writes=False).plan())
    return plans
