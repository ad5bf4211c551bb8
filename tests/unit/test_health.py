"""What `doctor` makes of what it sees: one row a thing that can be wrong."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from gpuinfra.models.agent import AgentState
from gpuinfra.models.checks import Check, Verdict
from gpuinfra.models.resource import Kind
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import ObservedResource
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.health import account
from gpuinfra.provision.health.machine import Facts, examine
from gpuinfra.provision.lifecycle import agent_role
from gpuinfra.provision.lifecycle.agent_role import AgentRole, Holding
from gpuinfra.provision.market.port import UNKNOWN_PERMISSIONS, Grant, Permissions
from gpuinfra.provision.market.preflight import ACTIONS
from gpuinfra.provision.market.price_list import DATE
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


def facts(**changes: Any) -> Facts:
    """Of a machine that is on, and of which everything is as it should be."""
    cloud = made()
    given = Facts(
        subscription=SUBSCRIPTION,
        machine=ObservedResource(ref(Kind.VM), cloud.body(Kind.VM)),
        schedule=ObservedResource(ref(Kind.SHUTDOWN_SCHEDULE), cloud.body(Kind.SHUTDOWN_SCHEDULE)),
        right=AgentRole(Holding.HELD),
        permissions=ALL,
        now=NOW,
        agent=ALIVE,
        is_reached=True,
    )
    return replace(given, **changes)


def found(given: Facts, name: str) -> Check:
    (check,) = [check for check in examine(given) if check.name == name]
    return check


def tagged(**marks: str) -> Facts:
    given = facts()
    given.machine.body["tags"].update({f"gpuinfra:{name.replace('_', '-')}": value for name, value in marks.items()})
    return given


# Machines


def test_a_machine_that_is_as_it_should_be() -> None:
    checks = examine(facts())
    names = ["state", "lease", "agent", "role", "schedule", "protection", "rights"]
    assert [(check.name, check.verdict) for check in checks] == [(name, Verdict.OK) for name in names]
    assert all(check.fix is None and not check.commands for check in checks)


def test_a_machine_that_is_off_needs_no_lease() -> None:
    cloud = made()
    cloud.set_power("deallocated")
    given = facts(machine=ObservedResource(ref(Kind.VM), cloud.body(Kind.VM)), agent=None, now=NOW + timedelta(days=9))
    assert [check.name for check in examine(given)] == ["state", "role", "protection", "rights"]
    assert {check.verdict for check in examine(given)} == {Verdict.OK}


@pytest.mark.parametrize(
    ("state", "power", "verdict", "words"),
    [
        ("Succeeded", "running", Verdict.OK, "running"),
        ("Succeeded", "starting", Verdict.OK, "starting"),
        ("Succeeded", "stopped", Verdict.PROBLEM, "of no use, and billed"),
        ("Failed", "running", Verdict.PROBLEM, "provisioning failed; it is running"),
    ],
)
def test_its_state(state: str, power: str, verdict: Verdict, words: str) -> None:
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
def test_a_lease_that_does_not_hold_is_a_problem(until: str, words: str) -> None:
    check = found(tagged(lease_until=until), "lease")
    assert check.verdict is Verdict.PROBLEM
    assert words in check.seen
    assert f"`gpuinfra down {NAME}`" in str(check.fix)


def test_a_lease_that_holds_says_until_when() -> None:
    assert found(facts(now=NOW + timedelta(hours=3, minutes=59)), "lease").seen == "until 2026-11-16 12:00Z"


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({"now": NOW + timedelta(seconds=119)}, Verdict.OK, "it is alive (watching)"),
        ({}, Verdict.OK, "it ends the machine at 2026-11-16 12:00Z"),
        (
            {"agent": replace(ALIVE, idle_until=NOW + timedelta(minutes=20))},
            Verdict.OK,
            "it ends the machine at 2026-11-16 08:20Z (idle)",
        ),
        ({"now": NOW + timedelta(seconds=121)}, Verdict.PROBLEM, "nothing for 121 s: it is not alive"),
        ({"agent": replace(ALIVE, last_error="token refused")}, Verdict.WARNING, "has trouble: token refused"),
        ({"agent": None, "no_agent": "no file", "now": NOW + timedelta(hours=1)}, Verdict.PROBLEM, "no file"),
        ({"agent": None, "no_agent": "no file"}, Verdict.WARNING, "not started yet"),
        ({"agent": None, "no_agent": "timed out", "is_reached": False}, Verdict.WARNING, "not seen: timed out"),
    ],
)
def test_the_agent(changes: dict[str, Any], verdict: Verdict, words: str) -> None:
    check = found(facts(**changes), "agent")
    assert check.verdict is verdict
    assert words in check.seen
    assert (check.fix is None) == (verdict is Verdict.OK)


def schedule(**properties: Any) -> ObservedResource:
    body = made().body(Kind.SHUTDOWN_SCHEDULE)
    return ObservedResource(ref(Kind.SHUTDOWN_SCHEDULE), {**body, "properties": {**body["properties"], **properties}})


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (None, "no daily stop"),
        (schedule(status="Disabled"), "is off"),
        (schedule(dailyRecurrence={"time": "1300"}), "stops it at 1300 UTC, its lease ends at 1200 UTC"),
        (schedule(timeZoneId="Pacific Standard Time"), "1200 Pacific Standard Time, its lease ends at 1200 UTC"),
        (schedule(targetResourceId=f"{MACHINE}2"), "of another machine"),
    ],
)
def test_a_schedule_that_is_not_at_the_leases_end_is_a_problem(part: ObservedResource | None, words: str) -> None:
    check = found(facts(schedule=part), "schedule")
    assert check.verdict is Verdict.PROBLEM
    assert words in check.seen


def test_azure_sees_no_case_in_ids() -> None:
    assert found(facts(schedule=schedule(targetResourceId=MACHINE.upper())), "schedule").verdict is Verdict.OK


def test_a_schedule_cannot_say_days() -> None:
    given = tagged(lease_until="2026-11-18T08:00:00Z")
    assert found(replace(given, schedule=schedule(status="Disabled")), "schedule").verdict is Verdict.WARNING
    nearer = replace(given, schedule=schedule(status="Disabled"), now=NOW + timedelta(hours=30))
    assert found(nearer, "schedule").verdict is Verdict.PROBLEM, "now it could, and nobody has set it"


def test_who_may_not_give_the_right_sees_what_an_administrator_runs() -> None:
    principal = agent_role.principal_of(facts().machine)
    assign = agent_role.assign_command(SUBSCRIPTION, MACHINE, principal)
    check = found(facts(right=AgentRole(Holding.ABSENT, message="there is no role")), "role")
    assert check.verdict is Verdict.WARNING
    assert "there is no role" in check.seen
    assert check.commands == (agent_role.define_command(SUBSCRIPTION), assign)
    there = found(facts(right=AgentRole(Holding.ABSENT, has_role=True)), "role")
    assert there.commands == (assign,), "the role is made once"


def test_a_machine_without_an_identity_is_nobody_to_give_a_role() -> None:
    given = facts(right=AgentRole(Holding.ABSENT, message="no identity"))
    del given.machine.body["identity"]
    check = found(given, "role")
    assert (check.verdict, check.commands) == (Verdict.WARNING, ())
    assert "`gpuinfra up SPEC`" in str(check.fix)


def test_a_right_that_azure_does_not_tell_of() -> None:
    check = found(facts(right=AgentRole(Holding.UNKNOWN, "AuthorizationFailed", "you may not look")), "role")
    assert check.verdict is Verdict.WARNING
    assert check.seen.endswith("AuthorizationFailed: you may not look")


@pytest.mark.parametrize(
    ("value", "verdict"), [("", Verdict.OK), ("False", Verdict.OK), ("true", Verdict.WARNING), ("me", Verdict.WARNING)]
)
def test_protection_is_shown(value: str, verdict: Verdict) -> None:
    assert found(tagged(protect=value), "protection").verdict is verdict


@pytest.mark.parametrize(
    ("permissions", "verdict", "words"),
    [
        (ALL, Verdict.OK, "you may start and deallocate it"),
        (READER, Verdict.PROBLEM, "you may not deallocate or start it"),
        (Permissions((Grant((agent_role.ACTION,)),)), Verdict.PROBLEM, "you may not start it"),
        (UNKNOWN_PERMISSIONS, Verdict.WARNING, "does not say"),
    ],
)
def test_what_the_caller_may_do_to_it(permissions: Permissions, verdict: Verdict, words: str) -> None:
    check = found(facts(permissions=permissions), "rights")
    assert check.verdict is verdict
    assert words in check.seen


# The account


def test_a_login_that_fails_says_what_to_do() -> None:
    check = account.no_login(CloudError(Fault.LOGIN, "CredentialUnavailable", "nobody"))
    assert check.verdict is Verdict.PROBLEM
    assert "CredentialUnavailable: nobody" in check.seen
    assert "`az login`" in str(check.fix)


def test_what_azure_does_not_say_is_no_more_than_a_warning() -> None:
    assert account.unknown("prices", CloudError(Fault.TIMEOUT, "Timeout", "late")).verdict is Verdict.WARNING


def test_providers() -> None:
    assert account.providers(()).verdict is Verdict.OK
    check = account.providers(("Microsoft.DevTestLab",))
    assert (check.verdict, check.commands) == (
        Verdict.WARNING,
        ("az provider register --namespace Microsoft.DevTestLab",),
    )


@pytest.mark.parametrize(
    ("permissions", "verdict", "missing"),
    [
        (ALL, Verdict.OK, ()),
        (CONTRIBUTOR, Verdict.OK, ()),
        (READER, Verdict.WARNING, ACTIONS),
        (UNKNOWN_PERMISSIONS, Verdict.WARNING, ()),
    ],
)
def test_rights_in_the_subscription(permissions: Permissions, verdict: Verdict, missing: tuple[str, ...]) -> None:
    check = account.permissions(permissions, SUBSCRIPTION)
    assert check.verdict is verdict
    assert all(action in check.seen for action in missing)


@pytest.mark.parametrize(
    ("permissions", "has_role", "verdict", "commands"),
    [
        (ALL, False, Verdict.OK, 0),
        (ALL, True, Verdict.OK, 0),
        (CONTRIBUTOR, False, Verdict.WARNING, 1),
        (CONTRIBUTOR, True, Verdict.WARNING, 0),
        (Permissions((Grant((agent_role.ASSIGNS_ROLES,)),)), True, Verdict.OK, 0),
        (Permissions((Grant((agent_role.ASSIGNS_ROLES,)),)), False, Verdict.WARNING, 1),
        (UNKNOWN_PERMISSIONS, False, Verdict.WARNING, 0),
    ],
)
def test_who_may_give_rights(permissions: Permissions, has_role: bool, verdict: Verdict, commands: int) -> None:
    check = account.roles(permissions, SUBSCRIPTION, has_role=has_role)
    assert (check.verdict, len(check.commands)) == (verdict, commands)


@pytest.mark.parametrize(
    ("seconds", "verdict", "words"),
    [
        (0, Verdict.OK, "agrees"),
        (-30, Verdict.OK, "agrees"),
        (31, Verdict.WARNING, "31 s ahead of Azure's"),
        (-299, Verdict.WARNING, "299 s behind Azure's"),
        (300, Verdict.PROBLEM, "300 s ahead of"),
        (-7200, Verdict.PROBLEM, "7200 s behind"),
    ],
)
def test_the_clock(seconds: int, verdict: Verdict, words: str) -> None:
    here: datetime = NOW + timedelta(seconds=seconds)
    check = account.clock(here, NOW, simulated=False)
    assert check.verdict is verdict
    assert words in check.seen
    assert account.clock(here, NOW, simulated=True).verdict is Verdict.OK


def test_prices() -> None:
    assert account.prices(is_live=True).verdict is Verdict.OK
    check = account.prices(is_live=False)
    assert check.verdict is Verdict.WARNING
    assert DATE in check.seen


def test_tags_are_read_in_any_case() -> None:
    given = facts()
    marks = given.machine.body["tags"]
    marks["GPUINFRA:Protect"] = "yes"
    marks[tags.LEASE_UNTIL.upper()] = marks.pop(tags.LEASE_UNTIL)
    assert found(given, "protection").verdict is Verdict.WARNING
    assert found(given, "lease").verdict is Verdict.OK
