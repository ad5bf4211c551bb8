"""Show what `up` would do. Nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuinfra.app.machines import explained, load_specs, open_provisioner, open_session

if TYPE_CHECKING:
    from gpuinfra.app.error_collector import ErrorCollector
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.settings import Settings
    from gpuinfra.models.plan import Plan
    from gpuinfra.parse.spec import LocatedSpec

SECONDS = 300.0


def make_plans(
    settings: Settings, paths: Sequence[str], frontend: Frontend
) -> tuple[list[Plan], ErrorCollector, BaseException | None]:
    """Return the plans for the specs in the files, all problems, and an exception to raise after these were shown.

    A broken spec, or one that cannot be planned, does not hide the plans of the others.
    """
    from gpuinfra.app.error_collector import ErrorCollector
    from gpuinfra.app.machine_tasks import for_each

    def task(located: LocatedSpec, settings: Settings, frontend: Frontend) -> Plan:
        return make_plan(settings, located, frontend)

    errors = ErrorCollector()
    specs = load_specs(paths, errors)
    done = for_each(specs, task, settings, frontend, errors=errors, name_of=lambda each: each.spec.name)
    return done.results, errors, done.ended_by


def make_plan(settings: Settings, located: LocatedSpec, frontend: Frontend) -> Plan:
    """Return the plan for one spec."""
    spec = located.spec
    session = open_session(settings, spec.subscription, SECONDS, frontend)
    with explained(f"planning {spec.name}"):
        return open_provisioner(session, located, frontend, writes=False).plan()
