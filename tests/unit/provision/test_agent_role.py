"""A machine's role to deallocate itself: ids, bodies, commands, and how `up` grants it."""

import json
import shlex
import threading
from typing import Any

import pytest

from gpuinfra.models.plan import Difference, Kind, Ref
from gpuinfra.provision import agent_role, apply
from gpuinfra.provision.agent_role import AgentRole, RoleState
from gpuinfra.provision.apply import LATE, RoleGrant
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.resources import vm
from gpuinfra.provision.up import UpOutcome
from gpuinfra.templates import read_template
from tests.unit.provision_help import (
    ALLOCATION,
    DENIED,
    NAME,
    SUBSCRIPTION,
    FakeCloud,
    RecordedProgress,
    lines_of,
    made,
    planned,
    provisioner,
    ref,
    spec,
    words,
)

MACHINE = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/m"
PRINCIPAL = "11111111-2222-3333-4444-555555555555"
REFUSED = AgentRole(RoleState.REFUSED, "AuthorizationFailed", "you may not", agent_role.ASSIGNS_ROLES)
UNKNOWN = AgentRole(RoleState.UNKNOWN, "Conflict", "in a moment")


# Pure functions
def test_role_has_one_action_in_one_subscription() -> None:
    role = json.loads(read_template("role.json"))
    assert (role["Actions"], role["NotActions"]) == ([agent_role.ACTION], [])
    body = agent_role.definition_body(SUBSCRIPTION)["properties"]
    assert body["permissions"] == [{"actions": [agent_role.ACTION], "notActions": []}]
    assert body["assignableScopes"] == [f"/subscriptions/{SUBSCRIPTION}"]
    assert body["roleName"] == f"gpuinfra: switch itself off ({SUBSCRIPTION})"


def test_ids_are_deterministic_and_unique() -> None:
    definition = agent_role.definition_id(SUBSCRIPTION, agent_role.definition_guid(SUBSCRIPTION))
    assert agent_role.definition_guid(SUBSCRIPTION.upper()) == agent_role.definition_guid(SUBSCRIPTION)
    assert agent_role.definition_guid("another") != agent_role.definition_guid(SUBSCRIPTION)
    own = agent_role.assignment_id(MACHINE, PRINCIPAL, definition)
    assert own.startswith(f"{MACHINE}/providers/Microsoft.Authorization/roleAssignments/")
    assert agent_role.guid_of(agent_role.assignment_id(MACHINE.upper(), PRINCIPAL, definition)) == agent_role.guid_of(
        own
    )
    others = [
        agent_role.assignment_id(f"{MACHINE}2", PRINCIPAL, definition),
        agent_role.assignment_id(MACHINE, "another", definition),
        agent_role.assignment_id(MACHINE, PRINCIPAL, f"{definition}2"),
    ]
    assert len({agent_role.guid_of(each) for each in (own, *others)}) == 4


@pytest.mark.parametrize(
    ("permissions", "serves"),
    [
        ([{"actions": [agent_role.ACTION]}], True),
        ([{"actions": ["*"]}], True),
        ([{"actions": ["Microsoft.Compute/virtualMachines/read"]}], False),
        ([{"actions": ["*"], "notActions": [agent_role.ACTION]}], False),
        ([], False),
        (None, False),
    ],
)
def test_role_serves_while_it_has_the_action(permissions: Any, serves: bool) -> None:
    assert agent_role.serves({"properties": {"permissions": permissions}}) is serves
    assert not agent_role.serves({})


def test_assignment_is_matched_by_its_role_guid() -> None:
    definition = agent_role.definition_id(SUBSCRIPTION, "ABC")
    given = [{"properties": {"roleDefinitionId": "/providers/Microsoft.Authorization/roleDefinitions/abc"}}]
    assert agent_role.is_assigned(given, definition)
    assert not agent_role.is_assigned(given, f"{definition}d")
    assert not agent_role.is_assigned([{}], definition)


@pytest.mark.parametrize(
    ("fault", "state", "word"),
    [
        (Fault.DENIED, RoleState.REFUSED, "not-armed"),
        (Fault.POLICY, RoleState.REFUSED, "not-armed"),
        (Fault.LOCKED, RoleState.REFUSED, "not-armed"),
        (Fault.OTHER, RoleState.REFUSED, "not-armed"),
        (Fault.BUSY, RoleState.UNKNOWN, "unknown"),
        (Fault.THROTTLED, RoleState.UNKNOWN, "unknown"),
        (Fault.UNREACHABLE, RoleState.UNKNOWN, "unknown"),
        (Fault.INTERRUPTED, RoleState.UNKNOWN, "unknown"),
    ],
)
def test_error_is_mapped_to_a_holding(fault: Fault, state: RoleState, word: str) -> None:
    right = agent_role.refused(CloudError(fault, "Code", "words"), "action")
    assert (right.state, right.code, right.message, right.word) == (state, "Code", "words", word)
    assert right.action == ("action" if fault is Fault.DENIED else "")


def test_role_commands_can_be_copied_to_a_shell() -> None:
    command = shlex.split(agent_role.define_command(SUBSCRIPTION))
    assert command[:4] == ["az", "role", "definition", "create"]
    assert json.loads(command[-1]) == agent_role.role_of(SUBSCRIPTION)
    given = shlex.split(agent_role.assign_command(SUBSCRIPTION, MACHINE.replace("/g/", "/g (1)/"), PRINCIPAL))
    options = dict(zip(given[4::2], given[5::2], strict=True))
    assert options == {
        "--assignee-object-id": PRINCIPAL,
        "--assignee-principal-type": "ServicePrincipal",
        "--role": agent_role.role_name(SUBSCRIPTION),
        "--scope": MACHINE.replace("/g/", "/g (1)/"),
    }


# The identity
@pytest.mark.parametrize(
    ("identity", "old", "sent"),
    [
        (None, "none", {"type": "SystemAssigned"}),
        ({"type": "None"}, "None", {"type": "SystemAssigned"}),
        (
            {"type": "UserAssigned", "userAssignedIdentities": {"/x": {"clientId": "1"}}},
            "UserAssigned",
            {"type": "SystemAssigned, UserAssigned", "userAssignedIdentities": {"/x": {}}},
        ),
    ],
)
def test_missing_identity_is_added_in_place(identity: Any, old: str, sent: dict[str, Any]) -> None:
    cloud = made()
    cloud.body(Kind.VM)["identity"] = identity
    plan = planned(cloud)
    assert words(plan) == ["change vm"]
    (change,) = plan.changes
    assert change.differences == (Difference("identity", old, "its own"),)
    assert change.resource is not None
    assert change.resource.body["identity"] == sent


@pytest.mark.parametrize("kind", ["SystemAssigned", "systemassigned", "SystemAssigned, UserAssigned"])
def test_existing_identity_is_kept(kind: str) -> None:
    cloud = made()
    cloud.body(Kind.VM)["identity"]["type"] = kind
    assert planned(cloud).is_empty
    plan = planned(cloud, spec(tags={"project": "mnist"}))
    (update,) = [change.resource for change in plan.changes if change.ref.kind is Kind.VM]
    assert update is not None
    assert "identity" not in update.body
    assert vm.IDENTITY == {"type": "SystemAssigned"}


# During up
def up(cloud: FakeCloud, **fields: Any) -> tuple[UpOutcome, list[str]]:
    work = provisioner(cloud, spec(**fields))
    outcome = work.up(lambda plan: None)
    return outcome, [line for line in lines_of(work.task) if "agent" in line]


def test_created_machine_gets_the_role() -> None:
    cloud = FakeCloud()
    outcome, told = up(cloud)
    assert outcome.agent == AgentRole(RoleState.GRANTED)
    assert cloud.allowed == ["principal-1"]
    assert told == ["agent: may switch the machine off"]


@pytest.mark.parametrize(("there", "call"), [(False, "wait vm my-dsvm"), (True, "observe my-dsvm")])
def test_role_is_granted_while_other_operations_run(there: bool, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A creation takes time, and an existing machine is looked at once more: no command waits for the role."""
    cloud, asked = made() if there else FakeCloud(), threading.Event()
    allow, seen = cloud.allow_self_stop, list[bool]()

    def note(part: ObservedResource) -> AgentRole:
        right = allow(part)
        asked.set()
        return right

    def look(called: str) -> None:
        # It is looked at twice: first of all, and at the end.
        if called == call and (not there or cloud.calls):
            seen.append(asked.wait(10))

    monkeypatch.setattr(cloud, "allow_self_stop", note)
    cloud.on_call = look
    up(cloud)
    assert seen == [True]


def test_existing_machine_gets_the_role() -> None:
    cloud = made()
    assert up(cloud)[0].agent == AgentRole(RoleState.GRANTED)
    outcome, told = up(cloud)
    assert outcome.plan.is_empty
    assert (outcome.agent, told) == (AgentRole(RoleState.HELD), [])


def test_plan_grants_no_role() -> None:
    cloud = made()
    provisioner(cloud).plan()
    assert cloud.allowed == []


def test_machine_that_is_kept_off_gets_no_role() -> None:
    cloud = made()
    assert up(cloud, power="deallocated")[0].agent is None
    assert cloud.allowed == []


def test_refused_role_is_reported_once_and_is_not_a_failure() -> None:
    cloud = FakeCloud(rights=[REFUSED])
    outcome, told = up(cloud)
    assert outcome.agent == REFUSED
    (line,) = told
    assert line.startswith("the guest agent may not switch the machine off (AuthorizationFailed): ")
    assert f"`gpuinfra doctor {NAME}`" in line
    assert cloud.allowed == [], "a refusal is final"


def test_unknown_role_state_is_checked_again_after_creation() -> None:
    cloud = FakeCloud(rights=[UNKNOWN])
    assert up(cloud)[0].agent == AgentRole(RoleState.GRANTED)
    cloud = FakeCloud(rights=[UNKNOWN, UNKNOWN])
    outcome, (line,) = up(cloud)
    assert outcome.agent == UNKNOWN
    assert line.startswith("the guest agent perhaps may not switch the machine off (Conflict): ")


def test_final_machine_gets_the_role_after_a_failover() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", ALLOCATION)
    outcome, _ = up(cloud, regions=("eastus", "westus2"))
    assert outcome.agent is not None
    assert outcome.agent.is_held
    assert agent_role.principal_of(ObservedResource(ref(Kind.VM), cloud.body(Kind.VM))) in cloud.allowed


def test_failed_machine_is_deleted_after_its_role_request_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cloud, done, deleted = FakeCloud(), list[str](), threading.Event()
    cloud.fail_operation("put vm", ALLOCATION)

    def slowly(_: ObservedResource) -> AgentRole:
        deleted.wait(0.1)
        done.append("asked")
        return UNKNOWN

    def look(call: str) -> None:
        if call == "delete vm my-dsvm":
            done.append("deleted")
            deleted.set()

    monkeypatch.setattr(cloud, "allow_self_stop", slowly)
    cloud.on_call = look
    up(cloud, regions=("eastus", "westus2"))
    assert done[:2] == ["asked", "deleted"]


def test_role_request_without_a_response_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "WAIT_SECONDS", 0.0)
    never = threading.Event()
    cloud = FakeCloud()
    monkeypatch.setattr(cloud, "allow_self_stop", lambda _: never.wait(10) and AgentRole(RoleState.GRANTED))
    heard = RecordedProgress()
    asking = RoleGrant(cloud, heard)
    part = ObservedResource(Ref(Kind.VM, "g", "m"), {})
    asking.begin(part)
    assert asking.end(part, cloud.time.deadline(60)) == LATE
    never.set()
    assert "(Timeout)" in heard.lines[0]


def test_refused_machine_is_reported_without_a_role_warning() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", DENIED)
    with pytest.raises(Exception, match="not allowed"):
        up(cloud)
    assert cloud.allowed == []
