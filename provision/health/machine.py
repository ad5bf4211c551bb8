"""Check one machine: whether each layer that should switch it off is in place."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from gpuinfra.models.agent import AgentState
from gpuinfra.models.health import HealthCheck, ok, problem, warning
from gpuinfra.provision import tags
from gpuinfra.provision.lifecycle import agent_role
from gpuinfra.provision.lifecycle.agent_role import AgentRole, RoleState
from gpuinfra.provision.lifecycle.lease import BACKSTOP, why_off
from gpuinfra.provision.market.port import Permissions
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.power import BILLED, SHUT_DOWN
from gpuinfra.provision.problems import role_help
from gpuinfra.provision.resources.shutdown_schedule import schedule_for

MAX_SILENCE_SECONDS = 120.0
"""An agent whose last sign of life is older than this has stopped: it reports every few seconds."""
START_SECONDS = 300.0
"""Cloud-init starts the agent some time after the machine first accepts SSH."""


@dataclass(frozen=True)
class HealthFacts:
    """The data from Azure and from the machine."""

    subscription: str
    machine: ObservedResource
    schedule: ObservedResource | None
    role: AgentRole
    permissions: Permissions
    """The caller's permissions in the machine's group."""
    now: datetime
    agent: AgentState | None = None
    no_agent: str = ""
    """Why the agent could not be queried, or what it answered instead; empty if it was not queried."""
    is_reached: bool = False
    """Whether a login succeeded."""

    @property
    def name(self) -> str:
        """The machine's name."""
        return tags.get(self.machine.tags, tags.NAME) or self.machine.ref.name

    @property
    def is_on(self) -> bool:
        """Whether the machine is billed."""
        return self.machine.power in BILLED


def examine(facts: HealthFacts) -> tuple[HealthCheck, ...]:
    """Return all checks, in the order of the layers."""
    return tuple(_examine(facts))


def _examine(facts: HealthFacts) -> Iterator[HealthCheck]:
    yield _state(facts)
    if facts.is_on:
        yield _lease(facts)
        yield _agent(facts)
    yield _role(facts)
    if facts.is_on:
        yield _schedule(facts)
    yield _protection(facts)
    yield _permissions(facts)


def _state(facts: HealthFacts) -> HealthCheck:
    machine = facts.machine
    if machine.state == "Failed":
        why = f" ({machine.failure})" if machine.failure else ""
        fix = f"`gpuinfra up SPEC` recreates it; `gpuinfra down {facts.name} --delete` removes it"
        return problem("state", f"its provisioning failed{why}; it is {machine.power}", fix)
    if machine.power in SHUT_DOWN:
        seen = f"{machine.power}: it cannot run jobs but is still billed"
        return problem("state", seen, f"`gpuinfra down {facts.name}` deallocates it; `gpuinfra up SPEC` starts it")
    return ok("state", machine.power)


def _lease(facts: HealthFacts) -> HealthCheck:
    reason, until = why_off(facts.machine, facts.now), tags.moment(facts.machine.tags, tags.LEASE_UNTIL)
    if not reason:
        return ok("lease", f"until {until:%Y-%m-%d %H:%M}Z")
    found = tags.get(facts.machine.tags, tags.LEASE_UNTIL)
    tag = f"its tag {tags.LEASE_UNTIL} is {f'`{found}`' if found else 'missing'}"
    seen = f"{reason}: {tag}, and it is {facts.machine.power}"
    return problem(
        "lease", seen, f"`gpuinfra down {facts.name}` switches it off; `gpuinfra up SPEC` gives it a new one"
    )


def _has_just_started(facts: HealthFacts) -> bool:
    since = tags.moment(facts.machine.tags, tags.ON_SINCE)
    return since is not None and (facts.now - since).total_seconds() < START_SECONDS


def _agent(facts: HealthFacts) -> HealthCheck:
    state = facts.agent
    if state is None:
        seen = facts.no_agent or "not checked"
        again = f"check it: `gpuinfra ssh {facts.name} -- systemctl status gpuinfra-agent`"
        if facts.is_reached and _has_just_started(facts):
            fix = f"`gpuinfra doctor {facts.name}` in a few minutes"
            return warning("agent", f"not started yet, on a machine that was just switched on: {seen}", fix)
        if facts.is_reached:
            return problem("agent", seen, f"{again}; a machine created by an older gpuinfra has none")
        return warning("agent", f"not seen: {seen}", f"`gpuinfra ssh {facts.name}` says more")
    age = state.age_seconds(facts.now)
    if age > MAX_SILENCE_SECONDS:
        fix = f"`gpuinfra ssh {facts.name} -- sudo systemctl restart gpuinfra-agent`"
        return problem("agent", f"it has not reported for {age:.0f} s: it has stopped", fix)
    if state.last_error:
        log = f"`gpuinfra ssh {facts.name} -- journalctl -u gpuinfra-agent` has more"
        return warning("agent", f"it is running ({state.action}), with an error: {state.last_error}", log)
    at, cause = state.forecast
    return ok("agent", f"it is running ({state.action}); it deallocates the machine at {at:%Y-%m-%d %H:%M}Z ({cause})")


def _role(facts: HealthFacts) -> HealthCheck:
    role = facts.role
    if role.is_held:
        return ok("role", "the machine may switch itself off")
    if role.state is RoleState.UNKNOWN:
        return warning("role", f"whether the machine may switch itself off is not known: {role.code}: {role.message}")
    seen = f"the machine may not switch itself off: {role.message}; Azure's schedule and `gpuinfra reap` still do"
    principal = agent_role.principal_of(facts.machine)
    if not principal:
        return warning("role", seen, "`gpuinfra up SPEC` gives it an identity and the right")
    place = facts.machine.ref.id(facts.subscription)
    commands = [agent_role.assign_command(facts.subscription, place, principal)]
    if not role.has_role:
        commands.insert(0, agent_role.define_command(facts.subscription))
    return warning(
        "role",
        seen,
        "`gpuinfra up SPEC` grants it if you may; otherwise an administrator runs:",
        *commands,
    )


def _schedule(facts: HealthFacts) -> HealthCheck:
    until = tags.moment(facts.machine.tags, tags.LEASE_UNTIL)
    fix = f"`gpuinfra up SPEC` sets it to the lease's end; so does `gpuinfra lease {facts.name} --extend 1h`"
    if until is None:
        return problem("schedule", "without a lease, Azure's daily stop has no time", fix)
    wanted = schedule_for(until, facts.now)
    if wanted["status"] == "Disabled":
        return warning("schedule", "the lease ends in a day or more, which Azure's daily stop cannot express")
    wrong = _wrong_schedule(facts, str(wanted["dailyRecurrence"]["time"]))
    if wrong:
        return problem("schedule", wrong, fix)
    return ok("schedule", f"Azure stops it at {until + BACKSTOP:%H:%M} UTC, soon after the lease's end")


def _wrong_schedule(facts: HealthFacts, wanted: str) -> str:
    """Return what is wrong with Azure's shutdown schedule, or an empty string if it fires at this time of day."""
    if facts.schedule is None:
        return "Azure has no daily stop for the machine"
    found = facts.schedule.properties
    if found.get("status") != "Enabled":
        return "Azure's daily stop for the machine is disabled"
    if str(found.get("targetResourceId") or "").casefold() != facts.machine.ref.id(facts.subscription).casefold():
        return "Azure's daily stop is for another machine"
    time, zone = (found.get("dailyRecurrence") or {}).get("time"), found.get("timeZoneId")
    return "" if (time, zone) == (wanted, "UTC") else f"Azure stops it at {time} {zone}, and not at {wanted} UTC"


def _protection(facts: HealthFacts) -> HealthCheck:
    found = tags.get(facts.machine.tags, tags.PROTECT)
    if not tags.is_protected(facts.machine.tags):
        return ok("protection", "`gpuinfra reap` may end it")
    seen = f"its tag {tags.PROTECT} is `{found}`: `gpuinfra reap` leaves it alone"
    return warning("protection", seen, "remove the tag if this is not intended")


def _permissions(facts: HealthFacts) -> HealthCheck:
    found, group = facts.permissions, facts.machine.ref.group
    if not found.known:
        return warning("rights", f"Azure does not say what you may do in group {group}")
    actions = {agent_role.ACTION: "deallocate", agent_role.ACTION.replace("deallocate", "start"): "start"}
    missing = [word for action, word in actions.items() if not found.allows(action)]
    if not missing:
        return ok("rights", "you may start and deallocate it")
    help_line = role_help(f"/subscriptions/{facts.subscription}/resourceGroups/{group}")
    return problem("rights", f"you may not {' or '.join(missing)} it", help_line)
