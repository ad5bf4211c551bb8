"""Checks of `doctor`: one per possible problem."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from gpuinfra.models.health import CheckStatus, HealthCheck
from gpuinfra.models.machine import AgentState
from gpuinfra.models.plan import Kind
from gpuinfra.provision import agent_role, tags
from gpuinfra.provision import health as account
from gpuinfra.provision.agent_role import AgentRole, RoleState
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.health import HealthFacts, examine
from gpuinfra.provision.market import DATE, UNKNOWN_PERMISSIONS, Grant, Permissions
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.preflight import ACTIONS
from tests.unit.provision_help import GROUP, NAME, NOW, SUBSCRIPTION, made, ref

ALL = Permissions((Grant(("*",)),))
CONTRIBUTOR = Permissions((Grant(("*",), ("Microsoft.Authorization/*/write",)),))
READER = Permissions((Grant(("*/read",)),))
MACHINE = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Compute/virtualMachines/{NAME}"
ALIVE = AgentState(
    at=NOW,
    power_on=NOW,
    until=NOW + timedelta(hours=4),
    cause="lease over",
    idle_since=None,
    idle_until=None,
    jobs=(),
    sessions=1,
    gpu_utilization=7,
    action="watching",
    last_error=None,
    eviction_notice=False,
)


def facts(**changes: Any) -> HealthFacts:
    """Return the facts of a healthy running machine."""
    cloud = made()
    given = HealthFacts(
        subscription=SUBSCRIPTION,
        machine=ObservedResource(ref(Kind.VM), cloud.body(Kind.VM)),
        schedule=ObservedResource(ref(Kind.SHUTDOWN_SCHEDULE), cloud.body(Kind.SHUTDOWN_SCHEDULE)),
        role=AgentRole(RoleState.HELD),
        permissions=ALL,
        now=NOW,
        agent=ALIVE,
        is_reached=True,
    )
    return replace(given, **changes)


def found(given: HealthFacts, name: str) -> HealthCheck:
    (check,) = [check for check in examine(given) if check.name == name]
    return check


def tagged(**marks: str) -> HealthFacts:
    given = facts()
    given.machine.body["tags"].update({f"gpuinfra:{name.replace('_', '-')}": value for name, value in marks.items()})
    return given


# Machines


def test_healthy_machine_passes_every_check() -> None:
    checks = examine(facts())
    names = ["state", "lease", "agent", "role", "schedule", "network", "protection", "rights"]
    assert [(check.name, check.verdict) for check in checks] == [(name, CheckStatus.OK) for name in names]
    assert all(check.fix is None and not check.commands for check in checks)


def test_deallocated_machine_needs_no_lease() -> None:
    cloud = made()
    cloud.set_power("deallocated")
    given = facts(machine=ObservedResource(ref(Kind.VM), cloud.body(Kind.VM)), agent=None, now=NOW + timedelta(days=9))
    assert [check.name for check in examine(given)] == ["state", "role", "network", "protection", "rights"]
    assert {check.verdict for check in examine(given)} == {CheckStatus.OK}


@pytest.mark.parametrize(
    ("state", "power", "verdict", "words"),
    [
        ("Succeeded", "running", CheckStatus.OK, "running"),
        ("Succeeded", "starting", CheckStatus.OK, "starting"),
        ("Succeeded", "stopped", CheckStatus.PROBLEM, "cannot run jobs but is still billed"),
        ("Failed", "running", CheckStatus.PROBLEM, "provisioning failed; it is running"),
    ],
)
def test_state_is_checked(state: str, power: str, verdict: CheckStatus, words: str) -> None:
    cloud = made()
    cloud.set_power(power)
    cloud.body(Kind.VM)["properties"]["provisioningState"] = state
    check = found(facts(machine=ObservedResource(ref(Kind.VM), cloud.body(Kind.VM))), "state")
    assert check.verdict is verdict
    assert words in check.seen


@pytest.mark.parametrize(
    ("until", "words"),
    [
        ("2026-11-16T08:00:00Z", "lease is over: its tag gpuinfra:lease-until is `2026-11-16T08:00:00Z`"),
        ("tomorrow", "it has no lease: its tag gpuinfra:lease-until is `tomorrow`"),
        ("", "it has no lease: its tag gpuinfra:lease-until is missing, and it is running"),
    ],
)
def test_missing_or_expired_lease_is_a_problem(until: str, words: str) -> None:
    check = found(tagged(lease_until=until), "lease")
    assert check.verdict is CheckStatus.PROBLEM
    assert words in check.seen
    assert f"`gpuinfra down {NAME}`" in str(check.fix)


def test_valid_lease_shows_its_end() -> None:
    assert found(facts(now=NOW + timedelta(hours=3, minutes=59)), "lease").seen == "until 2026-11-16 12:00Z"


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({"now": NOW + timedelta(seconds=119)}, CheckStatus.OK, "it is running (watching)"),
        ({}, CheckStatus.OK, "it deallocates the machine at 2026-11-16 12:00Z"),
        (
            {"agent": replace(ALIVE, idle_until=NOW + timedelta(minutes=20))},
            CheckStatus.OK,
            "it deallocates the machine at 2026-11-16 08:20Z (idle)",
        ),
        ({"now": NOW + timedelta(seconds=121)}, CheckStatus.PROBLEM, "not reported for 121 s: it has stopped"),
        ({"agent": replace(ALIVE, last_error="token refused")}, CheckStatus.WARNING, "with an error: token refused"),
        ({"agent": None, "no_agent": "no file", "now": NOW + timedelta(hours=1)}, CheckStatus.PROBLEM, "no file"),
        ({"agent": None, "no_agent": "no file"}, CheckStatus.WARNING, "not started yet"),
        ({"agent": None, "no_agent": "timed out", "is_reached": False}, CheckStatus.WARNING, "not seen: timed out"),
    ],
)
def test_agent_is_checked(changes: dict[str, Any], verdict: CheckStatus, words: str) -> None:
    check = found(facts(**changes), "agent")
    assert check.verdict is verdict
    assert words in check.seen
    assert (check.fix is None) == (verdict is CheckStatus.OK)


def schedule(**properties: Any) -> ObservedResource:
    body = made().body(Kind.SHUTDOWN_SCHEDULE)
    return ObservedResource(ref(Kind.SHUTDOWN_SCHEDULE), {**body, "properties": {**body["properties"], **properties}})


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (None, "no daily stop"),
        (schedule(status="Disabled"), "is disabled"),
        (schedule(dailyRecurrence={"time": "1300"}), "stops it at 1300 UTC, and not at 1235 UTC"),
        (schedule(timeZoneId="Pacific Standard Time"), "1235 Pacific Standard Time, and not at 1235 UTC"),
        (schedule(targetResourceId=f"{MACHINE}2"), "for another machine"),
    ],
)
def test_schedule_that_differs_from_the_lease_is_a_problem(part: ObservedResource | None, words: str) -> None:
    check = found(facts(schedule=part), "schedule")
    assert check.verdict is CheckStatus.PROBLEM
    assert words in check.seen


def test_ids_are_compared_without_case() -> None:
    assert found(facts(schedule=schedule(targetResourceId=MACHINE.upper())), "schedule").verdict is CheckStatus.OK


def test_schedule_cannot_express_a_lease_of_days() -> None:
    given = tagged(lease_until="2026-11-18T08:00:00Z")
    assert found(replace(given, schedule=schedule(status="Disabled")), "schedule").verdict is CheckStatus.WARNING
    nearer = replace(given, schedule=schedule(status="Disabled"), now=NOW + timedelta(hours=30))
    assert found(nearer, "schedule").verdict is CheckStatus.PROBLEM, "now it could, and it is not set"


def test_missing_role_shows_the_commands_for_an_administrator() -> None:
    principal = agent_role.principal_of(facts().machine)
    assign = agent_role.assign_command(SUBSCRIPTION, MACHINE, principal)
    check = found(facts(role=AgentRole(RoleState.ABSENT, message="there is no role")), "role")
    assert check.verdict is CheckStatus.WARNING
    assert "there is no role" in check.seen
    assert check.commands == (agent_role.define_command(SUBSCRIPTION), assign)
    there = found(facts(role=AgentRole(RoleState.ABSENT, has_role=True)), "role")
    assert there.commands == (assign,), "the role already exists"


def test_machine_without_an_identity_gets_no_role_commands() -> None:
    given = facts(role=AgentRole(RoleState.ABSENT, message="no identity"))
    del given.machine.body["identity"]
    check = found(given, "role")
    assert (check.verdict, check.commands) == (CheckStatus.WARNING, ())
    assert "`gpuinfra up SPEC`" in str(check.fix)


def test_unreadable_role_is_a_warning() -> None:
    check = found(facts(role=AgentRole(RoleState.UNKNOWN, "AuthorizationFailed", "you may not look")), "role")
    assert check.verdict is CheckStatus.WARNING
    assert check.seen.endswith("AuthorizationFailed: you may not look")


@pytest.mark.parametrize(
    ("value", "verdict"),
    [("", CheckStatus.OK), ("False", CheckStatus.OK), ("true", CheckStatus.WARNING), ("me", CheckStatus.WARNING)],
)
def test_protection_is_shown(value: str, verdict: CheckStatus) -> None:
    assert found(tagged(protect=value), "protection").verdict is verdict


@pytest.mark.parametrize(
    ("permissions", "verdict", "words"),
    [
        (ALL, CheckStatus.OK, "you may start and deallocate it"),
        (READER, CheckStatus.PROBLEM, "you may not deallocate or start it"),
        (Permissions((Grant((agent_role.ACTION,)),)), CheckStatus.PROBLEM, "you may not start it"),
        (UNKNOWN_PERMISSIONS, CheckStatus.WARNING, "does not say"),
    ],
)
def test_callers_permissions_on_the_machine_are_checked(
    permissions: Permissions, verdict: CheckStatus, words: str
) -> None:
    check = found(facts(permissions=permissions), "rights")
    assert check.verdict is verdict
    assert words in check.seen


# The account


def test_failed_login_says_what_to_do() -> None:
    check = account.no_login(CloudError(Fault.LOGIN, "CredentialUnavailable", "no login"))
    assert check.verdict is CheckStatus.PROBLEM
    assert "CredentialUnavailable: no login" in check.seen
    assert "`az login`" in str(check.fix)


def test_unknown_answer_of_azure_is_a_warning() -> None:
    assert account.unknown("prices", CloudError(Fault.TIMEOUT, "Timeout", "late")).verdict is CheckStatus.WARNING


def test_missing_provider_is_a_warning() -> None:
    assert account.providers(()).verdict is CheckStatus.OK
    check = account.providers(("Microsoft.DevTestLab",))
    assert (check.verdict, check.commands) == (
        CheckStatus.WARNING,
        ("az provider register --namespace Microsoft.DevTestLab",),
    )


@pytest.mark.parametrize(
    ("permissions", "verdict", "missing"),
    [
        (ALL, CheckStatus.OK, ()),
        (CONTRIBUTOR, CheckStatus.OK, ()),
        (READER, CheckStatus.WARNING, ACTIONS),
        (UNKNOWN_PERMISSIONS, CheckStatus.WARNING, ()),
    ],
)
def test_callers_permissions_in_the_subscription_are_checked(
    permissions: Permissions, verdict: CheckStatus, missing: tuple[str, ...]
) -> None:
    check = account.permissions(permissions, SUBSCRIPTION)
    assert check.verdict is verdict
    assert all(action in check.seen for action in missing)


@pytest.mark.parametrize(
    ("permissions", "has_role", "verdict", "commands"),
    [
        (ALL, False, CheckStatus.OK, 0),
        (ALL, True, CheckStatus.OK, 0),
        (CONTRIBUTOR, False, CheckStatus.WARNING, 1),
        (CONTRIBUTOR, True, CheckStatus.WARNING, 0),
        (Permissions((Grant((agent_role.ASSIGNS_ROLES,)),)), True, CheckStatus.OK, 0),
        (Permissions((Grant((agent_role.ASSIGNS_ROLES,)),)), False, CheckStatus.WARNING, 1),
        (UNKNOWN_PERMISSIONS, False, CheckStatus.WARNING, 0),
    ],
)
def test_permission_to_assign_roles_is_checked(
    permissions: Permissions, has_role: bool, verdict: CheckStatus, commands: int
) -> None:
    check = account.roles(permissions, SUBSCRIPTION, has_role=has_role)
    assert (check.verdict, len(check.commands)) == (verdict, commands)


@pytest.mark.parametrize(
    ("seconds", "verdict", "words"),
    [
        (0, CheckStatus.OK, "agrees"),
        (-30, CheckStatus.OK, "agrees"),
        (31, CheckStatus.WARNING, "31 s ahead of Azure's"),
        (-299, CheckStatus.WARNING, "299 s behind Azure's"),
        (300, CheckStatus.PROBLEM, "300 s ahead of"),
        (-7200, CheckStatus.PROBLEM, "7200 s behind"),
    ],
)
def test_clock_difference_is_checked(seconds: int, verdict: CheckStatus, words: str) -> None:
    here: datetime = NOW + timedelta(seconds=seconds)
    check = account.clock(here, NOW, simulated=False)
    assert check.verdict is verdict
    assert words in check.seen
    assert account.clock(here, NOW, simulated=True).verdict is CheckStatus.OK


def test_outdated_prices_are_a_warning() -> None:
    assert account.prices(is_live=True).verdict is CheckStatus.OK
    check = account.prices(is_live=False)
    assert check.verdict is CheckStatus.WARNING
    assert DATE in check.seen


def test_tags_are_read_in_any_case() -> None:
    given = facts()
    marks = given.machine.body["tags"]
    marks["GPUINFRA:Protect"] = "yes"
    marks[tags.LEASE_UNTIL.upper()] = marks.pop(tags.LEASE_UNTIL)
    assert found(given, "protection").verdict is CheckStatus.WARNING
    assert found(given, "lease").verdict is CheckStatus.OK
