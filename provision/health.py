"""Checks of `doctor`: each layer that should switch a machine off, and the subscription's login and permissions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuinfra.models.health import HealthCheck, ok, problem, warning
from gpuinfra.models.machine import AgentState
from gpuinfra.provision import agent_role, tags
from gpuinfra.provision.agent_role import AgentRole, RoleState
from gpuinfra.provision.errors import CloudError, explain, role_help
from gpuinfra.provision.lease import BACKSTOP, why_off
from gpuinfra.provision.locks import Lock, locks_on, removal
from gpuinfra.provision.market import DATE, Permissions
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.power import BILLED, SHUT_DOWN
from gpuinfra.provision.preflight import ACTIONS, PROVIDERS
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
    exposures: tuple[str, ...] = ()
    """How it can be reached in other ways than its spec allows."""
    locks: tuple[Lock, ...] = ()
    """All locks in the subscription."""
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
    yield _network(facts)
    yield from _locks(facts)
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


def _network(facts: HealthFacts) -> HealthCheck:
    if not facts.exposures:
        return ok("network", "its NSG opens only SSH")
    return problem("network", "; ".join(facts.exposures), "`gpuinfra up SPEC` restores the NSG")


def _locks(facts: HealthFacts) -> Iterator[HealthCheck]:
    """Describe the locks of the machine: under a `ReadOnly` one nothing can switch it off."""
    for lock in locks_on(facts.locks, facts.machine.ref.id(facts.subscription)):
        fix = f"{removal([lock])} removes it"
        if not lock.is_read_only:
            yield warning("lock", f"{lock} forbids `down --delete`", fix)
        elif facts.is_on:
            seen = f"{lock}: nothing can switch the machine off, and it is billed"
            yield problem("lock", seen, f"{fix}; then `gpuinfra down {facts.name}` switches it off")
        else:
            yield problem("lock", f"{lock}: the machine can be neither started nor deleted", fix)


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


DEALLOCATE, START = agent_role.ACTION, "Microsoft.Compute/virtualMachines/start/action"
WRITES = tuple(action for action in ACTIONS if action not in {DEALLOCATE, START})
RECORDS = "Microsoft.Resources/deployments/write"
# In seconds. Up to the first, tokens are still accepted and only displayed times are wrong.
MAX_SKEW, SMALL_SKEW = 300.0, 30.0
ROLES_HELP = (
    "the roles Owner or User Access Administrator on the subscription allow it; or an administrator creates the role "
    "once, and assigns it to each machine: `gpuinfra doctor MACHINE` shows how"
)


def login(name: str, subscription: str) -> HealthCheck:
    """Return the check for a successful login."""
    return ok("login", f"subscription {name} ({subscription})")


def no_login(error: CloudError) -> HealthCheck:
    """Return the check for a failed login."""
    (diagnostic,) = explain(error, "looking for the subscription").diagnostics
    return problem("login", f"{diagnostic.summary}: {diagnostic.note}", diagnostic.help)


def unknown(name: str, error: CloudError) -> HealthCheck:
    """Return the check for something optional that Azure did not answer."""
    return warning(name, f"not known: {error.code}: {error.message}")


def providers(unregistered: Sequence[str]) -> HealthCheck:
    """Check that the required resource providers are registered."""
    if not unregistered:
        return ok("providers", f"{', '.join(PROVIDERS)} are registered")
    commands = [f"az provider register --namespace {name}" for name in unregistered]
    seen = f"not registered yet: {', '.join(unregistered)}"
    return warning("providers", seen, "`gpuinfra up` registers them if it has the permission; or run:", *commands)


def permissions(found: Permissions, subscription: str) -> HealthCheck:
    """Check the caller's permissions on the whole subscription. Those on a group are checked with its machines."""
    if not found.known:
        return warning("rights", "Azure does not say what you may do in the subscription")
    missing = [action for action in (DEALLOCATE, START, *WRITES) if not found.allows(action)]
    if not missing:
        return ok("rights", "you may create, start and deallocate machines in the subscription")
    return warning(
        "rights",
        f"missing in the subscription as a whole: {', '.join(missing)}",
        role_help(f"/subscriptions/{subscription}"),
    )


def receipts(found: Permissions) -> HealthCheck:
    """Check whether the caller can record what deleted machines cost, for other workspaces."""
    if not found.known or found.allows(RECORDS):
        return ok("receipts", "`cost` of other workspaces includes machines that you delete")
    seen = f"`cost` of other workspaces may miss machines that you delete: missing is {RECORDS} on the subscription"
    return warning("receipts", seen, "the role Contributor on the subscription allows it, or a custom role with it")


def roles(found: Permissions, subscription: str, *, has_role: bool | None) -> HealthCheck:
    """Check whether the caller can grant new machines the role to deallocate themselves."""
    wanted = (agent_role.ASSIGNS_ROLES,) if has_role else (agent_role.MAKES_ROLES, agent_role.ASSIGNS_ROLES)
    missing = [action for action in wanted if not found.allows(action)]
    if not found.known:
        return warning("roles", "Azure does not say whether you may allow machines to switch themselves off")
    if not missing:
        there = "exists" if has_role else "is created with the first machine"
        return ok("roles", f"you may allow machines to switch themselves off; the role for it {there}")
    seen = f"you may not allow machines to switch themselves off: missing is {', '.join(missing)}"
    return warning("roles", seen, ROLES_HELP, *([] if has_role else [agent_role.define_command(subscription)]))


def prices(*, is_live: bool) -> HealthCheck:
    """Check where prices come from. A cost cap becomes a time limit, which needs a price."""
    if is_live:
        return ok("prices", "from the Retail Prices service")
    seen = (
        f"the Retail Prices service does not answer: `gpuinfra up` and `cost` use the shipped price list of {DATE}, "
        "and a new spot machine has no cost cap"
    )
    return warning("prices", seen, "check the network, the proxy and GPUINFRA_PRICES_ENDPOINT")


def clock(here: datetime, there: datetime, *, simulated: bool) -> HealthCheck:
    """Compare this computer's clock with Azure's, which leases use."""
    if simulated:
        return ok("clock", f"the embedded Azure has its own time, {there:%Y-%m-%d %H:%M:%S}Z")
    seconds = (here - there).total_seconds()
    if abs(seconds) <= SMALL_SKEW:
        return ok("clock", "it agrees with Azure's")
    way = "ahead of" if seconds > 0 else "behind"
    seen = f"{abs(seconds):.0f} s {way} Azure's; leases use Azure's, so they are correct"
    fix = "set the clock, as with `sudo timedatectl set-ntp true`"
    return (problem if abs(seconds) >= MAX_SKEW else warning)("clock", seen, fix)
