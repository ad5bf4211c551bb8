"""Show what `up` would do. Nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuinfra.app.machines import explained, load_specs, open_provisioner, reach

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.models.plan import Plan
    from gpuinfra.parse.spec import LocatedSpec

SECONDS = 300.0


def make_plans(settings: Settings, paths: Sequence[str], progress: Frontend) -> list[Plan]:
    """Return the plans for the specs in the files."""
    return [make_plan(settings, located, progress) for located in load_specs(paths)]


def make_plan(settings: Settings, located: LocatedSpec, progress: Frontend) -> Plan:
    """Return the plan for one spec."""
    spec = located.spec
    reached = reach(settings, spec.subscription, SECONDS, progress)
    with explained(f"planning {spec.name}"):
        return open_provisioner(reached, located, progress, writes=False).plan()
