"""Check that everything is in place that machines need, and that switches them off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from shlex import quote

from gpuinfra.app.access import CloudSession, cloud_errors, open_session
from gpuinfra.app.agents import NoAgentError, read_agent_state
from gpuinfra.app.frontend import Frontend
from gpuinfra.app.machine_names import chosen, target_of_vm
from gpuinfra.app.settings import Settings
from gpuinfra.app.specs import common_subscription
from gpuinfra.diagnostics import Code, Exit, Problem
from gpuinfra.models.health import CheckStatus, HealthCheck, HealthReport, MachineHealth, ok, problem, warning
from gpuinfra.models.plan import Kind
from gpuinfra.models.sizes import SIZES
from gpuinfra.models.spec import Admin, Spec
from gpuinfra.models.ssh import lacks_key
from gpuinfra.parse.files import load_paths
from gpuinfra.parse.spec import LocatedSpec
from gpuinfra.provision import health
from gpuinfra.provision import health as machine_health
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.exposure import exposures
from gpuinfra.provision.health import HealthFacts
from gpuinfra.provision.locks import Lock
from gpuinfra.provision.login import read_public_key
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import Owner, machine_of_row, owner_of, untagged_problem
from gpuinfra.provision.preflight import PROVIDERS

SECONDS = 120.0
"""For all checks, including the waits that Azure asks for."""


def examine(settings: Settings, names: Sequence[str], frontend: Frontend) -> HealthReport:
    """Check the account, this computer, and the machines with these names, or all machines without names."""
    specs, here = _specs(settings)
    here += _keys(settings, specs)
    try:
        session = open_session(settings, common_subscription(specs), SECONDS, frontend)
    except Problem as error:
        (diagnostic, *_) = error.diagnostics
        return HealthReport((problem("login", f"{diagnostic.summary}: {diagnostic.note}", diagnostic.help), *here))
    simulated = session.cloud.simulated
    frontend.begin("doctor", "looking at the subscription")
    checks = (*account(session), *here)
    if checks[0].verdict is CheckStatus.PROBLEM:  # without a login, machines cannot be checked
        frontend.fail("doctor", "no login")
        return HealthReport(checks, simulated=simulated)
    frontend.begin("doctor", "looking at machines")
    found = machines(session, names, specs)
    frontend.end("doctor", f"{len(found)} machine{'' if len(found) == 1 else 's'} checked")
    return HealthReport(checks, found, simulated=simulated)


def _specs(settings: Settings) -> tuple[list[LocatedSpec], list[HealthCheck]]:
    """Return the workspace's specs, and a warning if some cannot be read."""
    workspace = settings.folder
    loaded = load_paths([str(workspace)])
    bad = [each for each in loaded.diagnostics if each.code is not Code.NO_SPEC_FOUND]
    if not bad:
        return loaded.specs, []
    counted = "1 problem" if len(bad) == 1 else f"{len(bad)} problems"
    return loaded.specs, [
        warning("specs", f"{counted} in the workspace", f"`gpuinfra validate {quote(str(workspace))}` shows more")
    ]


def _keys(settings: Settings, specs: Sequence[LocatedSpec]) -> list[HealthCheck]:
    """Check the SSH keys in the specs, or the default key without specs."""
    wanted = list(dict.fromkeys(located.spec.admin.key() for located in specs))
    checks = []
    for key in wanted or [Admin().key()]:
        if lacks_key(key):
            checks.append(warning("ssh-key", "there is no SSH key yet", "`gpuinfra up` offers to create one"))
            continue
        shown = " ".join(key.split()[:1]) if len(key.split()) > 1 else key
        try:
            read_public_key(key, settings.folder)
        except Problem as error:
            (diagnostic,) = error.diagnostics
            # Without a spec, the key is not needed yet.
            checks.append((problem if wanted else warning)("ssh-key", str(diagnostic.note), diagnostic.help))
        else:
            checks.append(ok("ssh-key", f"{shown} is there"))
    return checks


REAPER = "`gpuinfra schedule install --with cron` runs it here; also systemd, github-actions, azure-pipelines"


def account(session: CloudSession) -> list[HealthCheck]:
    """Check the account. Without a login, return only that check."""
    market, cloud = session.market, session.cloud
    try:
        name = market.subscription_name()
    except CloudError as error:
        return [health.no_login(error)]
    here, there = datetime.now(UTC), cloud.now()
    with ThreadPoolExecutor(4, thread_name_prefix="doctor") as pool:
        asked = [pool.submit(ask, session) for ask in (_providers, _rights, _prices)]
        found = [each for question in asked for each in question.result()]
    return [
        health.login(name, market.subscription),
        _place(session),
        *found,
        health.clock(here, there, simulated=cloud.simulated),
        _reaper(),
    ]


def _place(session: CloudSession) -> HealthCheck:
    arm = session.cloud.endpoint
    return ok("azure", f"the embedded one, at {arm}: nothing here is billed" if session.cloud.simulated else arm)


def _reaper() -> HealthCheck:
    """Return the check for the reaper. It cannot be seen from here, so it is only a note."""
    return ok("reaper", "whether `gpuinfra reap` runs regularly cannot be checked from here", REAPER)


def _providers(session: CloudSession) -> list[HealthCheck]:
    return _known("providers", lambda: [health.providers(session.market.unregistered(PROVIDERS))])


def _rights(session: CloudSession) -> list[HealthCheck]:
    def ask() -> list[HealthCheck]:
        market = session.market
        allowed, has_role = market.actions_allowed(None), session.cloud.fleet.has_agent_role()
        return [
            health.permissions(allowed, market.subscription),
            health.roles(allowed, market.subscription, has_role=has_role),
            health.receipts(allowed),
        ]

    return _known("rights", ask)


def _prices(session: CloudSession) -> list[HealthCheck]:
    return [health.prices(is_live=bool(session.market.prices([next(iter(SIZES))]).rates))]


def _known(name: str, ask: Callable[[], list[HealthCheck]]) -> list[HealthCheck]:
    try:
        return ask()
    except CloudError as error:
        return [health.unknown(name, error)]


AT_ONCE = 4


def machines(session: CloudSession, names: Sequence[str], specs: Sequence[LocatedSpec]) -> tuple[MachineHealth, ...]:
    """Return the checks of the machines with these names, or of all."""
    with cloud_errors("listing machines"):
        rows = session.cloud.fleet.machines()
    by_key = {(each.spec.name.casefold(), each.spec.group_name.casefold()): each.spec for each in specs}
    # Sorted by name, then group: a name that exists twice appears twice.
    parts = sorted(map(machine_of_row, rows), key=lambda part: (part.ref.name, part.ref.group))
    wanted, absent, problems = chosen(session.settings, names, rows)
    if problems:
        raise Problem(*problems, exit_code=Exit.USAGE)
    shown = [part for part in parts if not names or (part.ref.name, part.ref.group) in wanted]
    untagged = [_untagged(part) for part in shown if owner_of(part) in {Owner.UNTAGGED, Owner.UNRECOGNISED}]
    ours = [part.ref for part in shown if owner_of(part) is Owner.OURS]
    locks = session.cloud.locks() if ours else ()
    with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="doctor") as pool:
        asked = [
            pool.submit(
                _look, session, ref.name, ref.group, by_key.get((ref.name.casefold(), ref.group.casefold())), locks
            )
            for ref in ours
        ]
        return (
            *(each.result() for each in asked),
            *untagged,
            *(MachineHealth(name, "", (problem("state", str(each.note), each.help),)) for name, each in absent.items()),
        )


def _untagged(machine: ObservedResource) -> MachineHealth:
    (found,) = untagged_problem(machine).diagnostics
    return MachineHealth(
        machine.ref.name, machine.ref.group, (problem("tags", f"{found.summary}: {found.note}", found.help),)
    )


def _look(session: CloudSession, name: str, group: str, spec: Spec | None, locks: tuple[Lock, ...]) -> MachineHealth:
    try:
        facts = _facts(session, name, group, spec, locks)
    except CloudError as error:
        return MachineHealth(name, group, (warning("state", f"not known: {error.code}: {error.message}"),))
    if facts is None:
        seen = "gpuinfra has no machine with this name in the subscription"
        return MachineHealth(name, "", (problem("state", seen, "`gpuinfra status` lists all machines"),))
    return MachineHealth(name, group, machine_health.examine(facts))


def _facts(
    session: CloudSession, name: str, group: str, spec: Spec | None, locks: tuple[Lock, ...]
) -> HealthFacts | None:
    cloud = session.cloud
    observed = cloud.observe(name, group)
    machine = observed.part(Kind.VM)
    if machine is None:
        return None  # it was deleted meanwhile
    facts = HealthFacts(
        subscription=cloud.subscription,
        machine=machine,
        schedule=observed.part(Kind.SHUTDOWN_SCHEDULE),
        role=cloud.agent_role(machine),
        permissions=session.market.actions_allowed(group),
        now=cloud.now(),
        exposures=exposures(machine, observed.part(Kind.NIC), observed.part(Kind.NSG), spec),
        locks=locks,
    )
    if machine.power != "running":
        return facts
    return replace(_with_agent(session, facts, observed, spec), now=cloud.now())


def _with_agent(session: CloudSession, facts: HealthFacts, observed: Observed, spec: Spec | None) -> HealthFacts:
    try:
        state = read_agent_state(target_of_vm(session, observed, spec.admin.key() if spec else None))
    except NoAgentError as error:
        return replace(facts, no_agent=str(error), is_reached=error.is_reached)
    except Problem as error:
        return replace(facts, no_agent=str(error.diagnostics[0].note))
    return replace(facts, agent=state, is_reached=True)
