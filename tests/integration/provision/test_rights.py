"""A machine's permission to deallocate itself: granted by `up`, used by the machine, and its limits."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest

from gpuinfra.models.plan import Kind
from gpuinfra.models.spec import Spec
from gpuinfra.provision import agent_role, waiting
from gpuinfra.provision.agent_role import AgentRole, RoleState
from gpuinfra.provision.azure.access import Access
from gpuinfra.provision.azure.clients import Clients, RequestLimits
from gpuinfra.provision.azure.cloud import AzureCloud
from gpuinfra.provision.azure.market import AzureMarket
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.resources.vm import IDENTITY
from gpuinfra.provision.tags import ref_of
from gpuinfra.provision.task import Task
from gpuinfra.provision.up import Provisioner, UpOutcome
from gpuinfra.provision.waiting import Deadline
from gpuinfra.sandbox.kernel import access_control
from tests.az import Az
from tests.integration.provision.conftest import close
from tests.integration.sandbox.machine_help import KEY
from tests.integration.sandbox.servers import Sandbox
from tests.integration.sandbox.services.test_identity import metadata
from tests.unit.provision_help import NO_JOURNAL, RecordedProgress, spec

API = "api-version=2022-04-01"
RIGHTS = "Microsoft.Authorization"


@pytest.fixture
def heard() -> RecordedProgress:
    return RecordedProgress()


@pytest.fixture
def cloud(server: Sandbox, access: Access) -> Iterator[AzureCloud]:
    server.control("POST", "faults", {"name": "no-boot", "count": 0})  # no guest is needed
    clients = Clients(access, RequestLimits(Deadline.after(60)))
    yield AzureCloud(clients)
    close(clients)


def up(cloud: AzureCloud, heard: RecordedProgress, wanted: Spec | None = None) -> UpOutcome:
    """Create a machine in Azure, without a guest."""
    return Provisioner(
        spec=wanted or spec(),
        task=Task(cloud, AzureMarket(cloud.clients), heard, NO_JOURNAL, Deadline.after(60)),
        sources=("203.0.113.7/32",),
        public_key=KEY,
    ).up(lambda plan: None)


def machine_of(cloud: AzureCloud, wanted: Spec | None = None) -> ObservedResource:
    wanted = wanted or spec()
    part = cloud.look(ref_of(Kind.VM, wanted.group_name, wanted.name))
    assert part is not None
    return part


def requests(server: Sandbox, *methods: str) -> list[str]:
    """Return the requests for authorization and their status."""
    found = server.control("GET", "log")["requests"]
    return [
        f"{each['method']} {each['path'].partition(f'{RIGHTS}/')[2].split('/')[0]} {each['status']}"
        for each in found
        if RIGHTS in each["path"] and not each["path"].endswith("permissions") and each["method"] in methods
    ]


def notes(heard: RecordedProgress) -> list[str]:
    return [line for line in heard.lines if "agent" in line]


def stop(server: Sandbox, machine: ObservedResource, target: ObservedResource, verb: str = "deallocate") -> int:
    """Return Azure's status for a machine that deallocates another, or itself."""
    vm_id, audience = machine.properties["vmId"], "https://management.azure.com/"
    path = f"/{vm_id}/metadata/identity/oauth2/token?api-version=2018-02-01&resource={audience}"
    status, token = metadata(server, path)
    assert status == 200, token
    headers = {"Authorization": f"Bearer {token['access_token']}"}
    where = f"{target.ref.id(server.subscription)}/{verb}?api-version=2024-07-01"
    return server.http("POST", where, token=False, headers=headers)[0]


def test_machine_may_deallocate_only_itself(cloud: AzureCloud, heard: RecordedProgress, server: Sandbox) -> None:
    other = spec(name="other")
    role = up(cloud, heard).agent
    assert role is not None
    assert (role.state, role.word) == (RoleState.GRANTED, "armed")
    assert notes(heard) == ["agent: may switch the machine off"]
    assert up(cloud, heard, other).agent is not None
    mine, theirs = machine_of(cloud), machine_of(cloud, other)
    assert stop(server, mine, theirs) == 403
    assert stop(server, mine, mine, "start") == 403
    assert stop(server, mine, mine, "powerOff") == 403
    assert stop(server, mine, mine) == 202
    assert machine_of(cloud).power == "deallocated"
    assert machine_of(cloud, other).power == "running"
    made = [each for each in requests(server, "PUT") if "roleDefinitions" in each]
    assert made == ["PUT roleDefinitions 201"], "one role serves all machines of a subscription"


def test_existing_role_is_found_with_one_request(cloud: AzureCloud, heard: RecordedProgress, server: Sandbox) -> None:
    up(cloud, heard)
    before = len(requests(server, "GET", "PUT"))
    heard.lines.clear()
    role = up(cloud, heard).agent
    assert role is not None
    assert role.state is RoleState.HELD
    asked = [each for each in requests(server, "GET", "PUT")[before:] if " role" in each]
    assert asked == ["GET roleAssignments 200"]
    assert notes(heard) == []


@pytest.mark.parametrize(
    ("kind", "action", "made"),
    [
        ("roleDefinitions", agent_role.MAKES_ROLES, ["PUT roleDefinitions 403"]),
        ("roleAssignments", agent_role.ASSIGNS_ROLES, ["PUT roleDefinitions 201", "PUT roleAssignments 403"]),
    ],
)
def test_up_without_role_permission_creates_the_machine_and_warns(
    cloud: AzureCloud, heard: RecordedProgress, server: Sandbox, kind: str, action: str, made: list[str]
) -> None:
    server.control("POST", "faults", {"name": "AuthorizationFailed", "type": kind, "method": "PUT", "count": 0})
    role = up(cloud, heard).agent
    assert role is not None
    assert (role.state, role.code, role.action) == (RoleState.REFUSED, "AuthorizationFailed", action)
    assert role.word == "not-armed"
    assert requests(server, "PUT") == made, "it is requested once"
    (note,) = notes(heard)
    assert note.startswith("the guest agent may not switch the machine off (AuthorizationFailed): ")
    assert "`gpuinfra doctor my-dsvm`" in note
    mine = machine_of(cloud)
    assert mine.power == "running"
    assert stop(server, mine, mine) == 403
    assert cloud.agent_role(mine).state is RoleState.ABSENT


def test_role_commands_of_doctor_work(
    cloud: AzureCloud, heard: RecordedProgress, server: Sandbox, access: Access, tmp_path: Path
) -> None:
    """With the commands that `doctor` shows. `az` chooses its own ids, so they differ from ours."""
    az = Az(tmp_path, endpoint=server.endpoint, authority_file=str(server.server.authority_file))
    secret = access.client_secret
    assert secret is not None
    az.login(tenant=secret.tenant, client=secret.client_id, secret=secret.secret)
    fault = {"name": "AuthorizationFailed", "type": "roleDefinitions", "method": "PUT"}
    server.control("POST", "faults", fault)
    assert up(cloud, heard).agent == AgentRole(RoleState.REFUSED, "AuthorizationFailed", ANY, agent_role.MAKES_ROLES)
    machine, look = machine_of(cloud), cloud.agent_role
    assert look(machine).message == "the subscription has no role for it"
    az(*shlex.split(agent_role.define_command(server.subscription))[1:])
    assert look(machine) == AgentRole(RoleState.ABSENT, "", "the machine does not have the role", has_role=True)
    place = machine.ref.id(server.subscription)
    az(*shlex.split(agent_role.assign_command(server.subscription, place, agent_role.principal_of(machine)))[1:])
    assert look(machine).state is RoleState.HELD
    server.control("POST", "faults", {**fault, "type": "roleAssignments", "count": 0})
    again = up(cloud, heard).agent
    assert again is not None
    assert again.state is RoleState.HELD
    assert stop(server, machine, machine) == 202


def test_missing_identity_is_added_in_place(cloud: AzureCloud, heard: RecordedProgress, server: Sandbox) -> None:
    up(cloud, heard)
    where = f"{machine_of(cloud).ref.id(server.subscription)}?api-version=2024-07-01"
    assert server.http("PATCH", where, {"identity": {"type": "None"}})[0] < 300
    assert "identity" not in machine_of(cloud).body
    assert cloud.agent_role(machine_of(cloud)).message == "the machine has no identity of its own"
    found = up(cloud, heard)
    (change,) = found.plan.changes
    assert change.action == "change"
    assert [(each.what, each.old, each.new) for each in change.differences] == [("identity", "none", "its own")]
    assert found.agent is not None
    assert found.agent.state is RoleState.GRANTED, "the new identity had no role"
    mine = machine_of(cloud)
    assert mine.body["identity"]["type"] == IDENTITY["type"]
    assert stop(server, mine, mine) == 202


def test_role_assignment_waits_for_the_new_principal(
    cloud: AzureCloud, heard: RecordedProgress, server: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "FIRST_PAUSE", 0.01)
    asked: list[str] = []
    is_principal = access_control.is_principal

    def lagging(there: Any, principal: str) -> bool:
        asked.append(principal)
        return len(asked) > 3 and is_principal(there, principal)

    monkeypatch.setattr(access_control, "is_principal", lagging)
    role = up(cloud, heard).agent
    assert role is not None
    assert role.state is RoleState.GRANTED
    refused = ["PUT roleAssignments 400"] * 3
    assert [each for each in requests(server, "PUT") if "Assign" in each] == [*refused, "PUT roleAssignments 201"]


def test_changed_role_is_restored(cloud: AzureCloud, heard: RecordedProgress, server: Sandbox) -> None:
    up(cloud, heard)
    definition = agent_role.definition_id(server.subscription, agent_role.definition_guid(server.subscription))
    body = agent_role.definition_body(server.subscription)
    body["properties"]["permissions"] = [{"actions": ["Microsoft.Compute/virtualMachines/read"]}]
    assert server.http("PUT", f"{definition}?{API}", body)[0] == 201
    role = cloud.agent_role(machine_of(cloud))
    assert role.state is RoleState.ABSENT
    assert re.search(r"no longer allows .*/deallocate/action", role.message)
    assert up(cloud, heard, spec(name="other")).agent is not None
    assert cloud.agent_role(machine_of(cloud)).state is RoleState.HELD


def test_unknown_role_state_does_not_block_up(cloud: AzureCloud, heard: RecordedProgress, server: Sandbox) -> None:
    server.control("POST", "faults", {"name": "Conflict", "type": "roleDefinitions", "method": "PUT", "count": 0})
    role = up(cloud, heard).agent
    assert role is not None
    assert (role.state, role.word, role.code) == (RoleState.UNKNOWN, "unknown", "Conflict")
    (note,) = notes(heard)
    assert note.startswith("the guest agent perhaps may not switch the machine off (Conflict): ")
    assert requests(server, "PUT") == ["PUT roleDefinitions 409"] * 2, "and once more after the creation"
