"""Show and change until when a machine may be on."""

from __future__ import annotations

from datetime import timedelta
from shlex import quote

from gpuinfra.app.access import CloudSession, cloud_errors, open_session
from gpuinfra.app.agents import is_agent_armed
from gpuinfra.app.consent import Request, require_consent
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.lease_renewal import RELEASED, only_schedule
from gpuinfra.app.ledger_recording import record_lease
from gpuinfra.app.machine_costs import MachineCosts
from gpuinfra.app.machine_names import located
from gpuinfra.app.settings import Settings, seconds_of
from gpuinfra.app.specs import is_path, one_spec, spec_named
from gpuinfra.diagnostics import Code, Exit, problem
from gpuinfra.models.consent import Effect
from gpuinfra.models.hours import Hours
from gpuinfra.models.machine import LeaseState
from gpuinfra.models.plan import Power
from gpuinfra.models.spec import Spec
from gpuinfra.provision import fleet, tags
from gpuinfra.provision.fleet import lease_state
from gpuinfra.provision.lease import hours_from_tag
from gpuinfra.provision.market import Prices
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.power import DEALLOCATED
from gpuinfra.provision.renew import Renewed, find_machine, renew, renewal

SECONDS = 300.0


def lease(
    settings: Settings, machine: str, extend: str | None, frontend: Frontend, *, release: bool
) -> tuple[LeaseState, bool]:
    """Return the lease after the requested change, and whether the cost cap prevented that change."""
    length = _length(extend, release=release)
    spec = _meant(settings, machine)
    writes = release or length is not None
    with cloud_errors(f"looking at {spec.name if spec else machine}"):
        session = open_session(settings, spec.subscription if spec else None, SECONDS, frontend, writes=writes)
        named = located(settings, session.cloud, machine, spec)
        found = find_machine(session.cloud, named.name, named.group)
        hours = _hours(found, named.spec)
        if release:
            _require_consent(session, found, hours, named.spec, frontend)
        renewed = _renew(session, found, hours, length, release=release) if writes else None
        if renewed and renewed.needs_schedule:
            frontend.note(only_schedule(found.ref.name, renewed.until))
        if renewed and release:
            _end_released(session, found, renewed, named.spec, frontend)
        if renewed:
            found = session.cloud.look(found.ref) or found
        if renewed and renewed.changed and not release:
            record_lease(session, found, frontend)
        state = _state(session, found, hours, renewed)
    return state, renewed is not None and renewed.capped and not renewed.changed


def _length(extend: str | None, *, release: bool) -> timedelta | None:
    if extend is None:
        return None
    if release:
        raise problem(
            Code.USAGE,
            "wrong usage",
            "`--extend` gives more time, and `--release` takes it all",
            "leave one of them out",
            exit_code=Exit.USAGE,
        )
    return timedelta(seconds=seconds_of("--extend", extend))


def _meant(settings: Settings, word: str) -> Spec | None:
    """Return the machine's spec, or None."""
    return one_spec(settings, word) if is_path(word) else spec_named(settings.workspace, word)


def _hours(machine: ObservedResource, spec: Spec | None) -> Hours | None:
    """Return the spec's hours, which include holidays, unless the spec changed since `up`; then those in the tag."""
    if spec and tags.get(machine.tags, tags.DIGEST) == spec.digest():
        return spec.lifecycle.hours
    return hours_from_tag(tags.get(machine.tags, tags.HOURS))


def _require_consent(
    session: CloudSession, machine: ObservedResource, hours: Hours | None, spec: Spec | None, frontend: Frontend
) -> None:
    """Raise Problem if a release would stop running jobs without consent."""
    now = session.cloud.now()
    if renewal(machine.tags, now, release=True, hours=hours).until - now > RELEASED:
        return  # within its hours, it ends with them
    name = machine.ref.name
    command = f"gpuinfra lease {quote(name)} --release"
    request = Request(name, machine.ref.group, Effect.POWER_OFF, command=command, is_down=True)
    require_consent(request, session, spec, frontend)


def _renew(
    session: CloudSession, machine: ObservedResource, hours: Hours | None, length: timedelta | None, *, release: bool
) -> Renewed:
    name = tags.get(machine.tags, tags.NAME)
    deadline = session.cloud.deadline
    group = machine.ref.group
    return renew(session.cloud, name, group, extend=length, release=release, hours=hours, deadline=deadline)


def _end_released(
    session: CloudSession, found: ObservedResource, renewed: Renewed, spec: Spec | None, frontend: Frontend
) -> None:
    """Deallocate a machine whose lease was released, unless its guest agent is proven to do so.

    The agent asks jobs to end first. Azure's schedule alone would take more than half an hour.
    """
    cloud = session.cloud
    now = cloud.now()
    if renewed.until - now > RELEASED:
        return  # within its hours, it ends with them
    machine = fleet.machine_of(found, None, now, Prices())
    if is_agent_armed(session, found, machine, spec.admin.key() if spec else None):
        return
    current = cloud.look(found.ref)
    if current is None or current.power == DEALLOCATED:
        return  # the agent was faster
    label = str(found.ref)
    frontend.begin(label, "deallocating: its guest agent is not seen to do so")
    cloud.wait(cloud.act(found.ref, Power.DEALLOCATE), cloud.deadline)
    frontend.end(label, "deallocated")


def _state(
    session: CloudSession, machine: ObservedResource, hours: Hours | None, renewed: Renewed | None
) -> LeaseState:
    prices, now = session.market.prices(fleet.sizes([machine.body])), session.cloud.now()
    past = MachineCosts(session).histories([machine.body], now, prices)[str(machine.body["id"]).casefold()]
    return lease_state(machine, hours, now, prices, renewed, past=past, simulated=session.cloud.simulated)
