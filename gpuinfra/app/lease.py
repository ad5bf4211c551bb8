"""Show and change until when a machine may be on."""

from __future__ import annotations

from datetime import timedelta
from shlex import quote
from typing import TYPE_CHECKING

from gpuinfra.app.lease_renewal import only_schedule
from gpuinfra.app.settings import Settings
from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.machines import CloudSession
    from gpuinfra.models.hours import Hours
    from gpuinfra.models.machine import LeaseState
    from gpuinfra.models.spec import Spec
    from gpuinfra.provision.observed_resource import ObservedResource
    from gpuinfra.provision.renew import Renewed

SECONDS = 300.0
# A released lease ends with the next whole minute.
RELEASED = timedelta(minutes=2)


def lease(
    settings: Settings, machine: str, extend: str | None, progress: Frontend, *, release: bool
) -> tuple[LeaseState, bool]:
    """Return the lease after the requested change, and whether the cost cap prevented that change."""
    from gpuinfra.app.machine_names import located
    from gpuinfra.app.machines import explained, reach
    from gpuinfra.provision.renew import find_machine

    length = _length(extend, release=release)
    spec = _meant(settings, machine)
    writes = release or length is not None
    with explained(f"looking at {spec.name if spec else machine}"):
        reached = reach(settings, spec.subscription if spec else None, SECONDS, progress, writes=writes)
        named = located(settings, reached.cloud, machine, spec)
        found = find_machine(reached.cloud, named.name, named.group)
        hours = _hours(found, named.spec)
        if release:
            _require_consent(reached, found, hours, named.spec, progress)
        renewed = _renew(reached, found, hours, length, release=release) if writes else None
        if renewed and renewed.needs_schedule:
            progress.note(only_schedule(found.ref.name, renewed.until))
        if renewed and release:
            _end_released(reached, found, renewed, named.spec, progress)
        if renewed:
            found = reached.cloud.look(found.ref) or found
        state = _state(reached, found, hours, renewed)
    return state, renewed is not None and renewed.capped and not renewed.changed


def _length(extend: str | None, *, release: bool) -> timedelta | None:
    from gpuinfra.app.durations import seconds_of

    if extend is None:
        return None
    if release:
        raise Problem(
            Diagnostic(
                Code.USAGE,
                "wrong usage",
                note="`--extend` gives more time, and `--release` takes it all",
                help="leave one of them out",
            ),
            exit_code=Exit.USAGE,
        )
    return timedelta(seconds=seconds_of("--extend", extend))


def _meant(settings: Settings, word: str) -> Spec | None:
    """Return the machine's spec, or None."""
    from gpuinfra.app.machines import is_path, one_spec, spec_named

    return one_spec(settings, word) if is_path(word) else spec_named(settings.workspace, word)


def _hours(machine: ObservedResource, spec: Spec | None) -> Hours | None:
    """Return the spec's hours, which include holidays, unless the spec changed since `up`; then those in the tag."""
    from gpuinfra.provision import tags
    from gpuinfra.provision.lifecycle.hours import hours_from_tag

    if spec and tags.get(machine.tags, tags.DIGEST) == spec.digest():
        return spec.lifecycle.hours
    return hours_from_tag(tags.get(machine.tags, tags.HOURS))


def _require_consent(
    reached: CloudSession, machine: ObservedResource, hours: Hours | None, spec: Spec | None, progress: Frontend
) -> None:
    """Raise Problem if a release would stop running jobs without consent."""
    from gpuinfra.app.consent import Request, require_consent
    from gpuinfra.models.consent import Effect
    from gpuinfra.provision.renew import renewal

    now = reached.cloud.now()
    if renewal(machine.tags, now, release=True, hours=hours).until - now > RELEASED:
        return  # within its hours, it ends with them
    name = machine.ref.name
    command = f"gpuinfra lease {quote(name)} --release"
    request = Request(name, machine.ref.group, Effect.POWER_OFF, command=command, is_down=True)
    require_consent(request, reached, spec, progress)


def _renew(
    reached: CloudSession, machine: ObservedResource, hours: Hours | None, length: timedelta | None, *, release: bool
) -> Renewed:
    from gpuinfra.provision import tags
    from gpuinfra.provision.renew import renew

    name = tags.get(machine.tags, tags.NAME)
    deadline = reached.cloud.deadline
    group = machine.ref.group
    return renew(reached.cloud, name, group, extend=length, release=release, hours=hours, deadline=deadline)


def _end_released(
    reached: CloudSession, found: ObservedResource, renewed: Renewed, spec: Spec | None, progress: Frontend
) -> None:
    """Deallocate a machine whose lease was released, unless its guest agent is proven to do so.

    The agent asks jobs to end first. Azure's schedule alone would take more than half an hour.
    """
    from gpuinfra.app.agents import is_agent_armed
    from gpuinfra.models.plan import Power
    from gpuinfra.provision import fleet
    from gpuinfra.provision.market.port import Prices
    from gpuinfra.provision.power import DEALLOCATED

    cloud = reached.cloud
    now = cloud.now()
    if renewed.until - now > RELEASED:
        return  # within its hours, it ends with them
    machine = fleet.machine_of(found, None, now, Prices())
    if is_agent_armed(reached, found, machine, spec.admin.key() if spec else None):
        return
    current = cloud.look(found.ref)
    if current is None or current.power == DEALLOCATED:
        return  # the agent was faster
    label = str(found.ref)
    progress.begin(label, "deallocating: its guest agent is not seen to do so")
    cloud.wait(cloud.act(found.ref, Power.DEALLOCATE), cloud.deadline)
    progress.end(label, "deallocated")


def _state(
    reached: CloudSession, machine: ObservedResource, hours: Hours | None, renewed: Renewed | None
) -> LeaseState:
    from gpuinfra.app.accounts import Accounts
    from gpuinfra.provision import fleet
    from gpuinfra.provision.fleet import lease_state

    prices, now = reached.market.prices(fleet.sizes([machine.body])), reached.cloud.now()
    past = Accounts(reached).histories([machine.body], now, prices)[str(machine.body["id"]).casefold()]
    return lease_state(machine, hours, now, prices, renewed, past=past, simulated=reached.cloud.simulated)
