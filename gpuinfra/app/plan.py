"""Show what `up` would do. Nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpuinfra.app.access import CloudSession, cloud_errors, open_session
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.machine_tasks import ErrorCollector, for_each
from gpuinfra.app.settings import Settings
from gpuinfra.app.specs import load_specs
from gpuinfra.app.ssh_key import public_key_for
from gpuinfra.models.addresses import AUTO
from gpuinfra.models.plan import Plan
from gpuinfra.models.spec import Spec
from gpuinfra.parse.spec import LocatedSpec
from gpuinfra.provision.journal import Journal
from gpuinfra.provision.login.own_address import own_address
from gpuinfra.provision.reaping.spec_history import repository_of
from gpuinfra.provision.up import Provisioner

SECONDS = 300.0
LOOPBACK_SOURCE = "127.0.0.1/32"


def make_plans(
    settings: Settings, paths: Sequence[str], frontend: Frontend
) -> tuple[list[Plan], ErrorCollector, BaseException | None]:
    """Return the plans for the specs in the files, all problems, and an exception to raise after these were shown.

    A broken spec, or one that cannot be planned, does not hide the plans of the others.
    """

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
    with cloud_errors(f"planning {spec.name}"):
        return open_provisioner(session, located, frontend, writes=False).plan()


def open_provisioner(session: CloudSession, located: LocatedSpec, frontend: Frontend, *, writes: bool) -> Provisioner:
    """Return a Provisioner for a spec, with everything that planning and creating need."""
    spec = located.spec

    repository, note = repository_of(Path(located.span.file))
    if note and writes:
        frontend.note(note)
    task = session.task(spec.name, frontend)
    return Provisioner(
        spec=spec,
        task=task if writes else replace(task, journal=Journal(None, spec.name, "")),
        sources=ssh_sources(spec, simulated=session.cloud.simulated),
        public_key=public_key_for(session.settings, spec, frontend, creates=writes),
        repository=repository,
    )


def ssh_sources(spec: Spec, *, simulated: bool) -> tuple[str, ...]:
    """Return the addresses that may reach SSH. `auto` is this computer's address, loopback in the sandbox."""
    found = []
    for source in spec.network.allow_ssh_from:
        if source == AUTO:
            found.append(LOOPBACK_SOURCE if simulated else f"{own_address()}/32")
        else:
            found.append(source if "/" in source else f"{source}/32")
    return tuple(dict.fromkeys(found))
