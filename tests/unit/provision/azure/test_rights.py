"""Granting a machine its role: which requests follow which answers."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpuinfra.models.plan import Kind, Ref
from gpuinfra.provision import agent_role
from gpuinfra.provision.agent_role import AgentRole, RoleState
from gpuinfra.provision.azure.access import Access
from gpuinfra.provision.azure.clients import Clients, RequestLimits
from gpuinfra.provision.azure.rights import NEW_SECONDS, Rights
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.observed_resource import ObservedResource
from tests.unit.provision_help import BUSY, DENIED, SUBSCRIPTION, InstantInterrupt, Time

MACHINE = ObservedResource(Ref(Kind.VM, "g", "m"), {"identity": {"principalId": "p"}})
OWN = agent_role.definition_id(SUBSCRIPTION, agent_role.definition_guid(SUBSCRIPTION))
THEIRS = agent_role.definition_id(SUBSCRIPTION, "11111111-2222-3333-4444-555555555555")
ROLE = {**agent_role.definition_body(SUBSCRIPTION), "id": OWN}
EXISTS = CloudError(Fault.OTHER, "RoleAssignmentExists", "it does", status=409)
UNKNOWN_PRINCIPAL = CloudError(Fault.OTHER, "PrincipalNotFound", "who?", status=400)
NO_ROLE = CloudError(Fault.ABSENT, "RoleDefinitionDoesNotExist", "which?", status=404)
LIST_ROLES, LIST, MAKE, GIVE = (
    "GET roleDefinitions",
    "GET roleAssignments",
    "PUT roleDefinitions",
    "PUT roleAssignments",
)


class Scripted:
    """Returns the next answer for each request; the last one repeats."""

    def __init__(self, **answers: Any) -> None:
        self.asked: list[str] = []
        self.sent: list[tuple[str, Any]] = []
        names = {"roles": LIST_ROLES, "given": LIST, "make": MAKE, "give": GIVE}
        self._answers = {names[name]: value if isinstance(value, list) else [value] for name, value in answers.items()}

    def pages(self, path: str, version: str, query: Mapping[str, str]) -> Iterator[dict[str, Any]]:
        assert (version, list(query)) == ("2022-04-01", ["$filter"])
        return iter(self._answer("GET", path))

    def send(self, method: str, path: str, version: str, body: dict[str, Any]) -> dict[str, Any]:
        assert version == "2022-04-01"
        self.sent.append((path, body))
        return dict(self._answer(method, path) or {})

    def _answer(self, method: str, path: str) -> Any:
        call = f"{method} {path.rpartition('Microsoft.Authorization/')[2].split('/')[0]}"
        self.asked.append(call)
        answers = self._answers.get(call, [()])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, CloudError):
            raise answer
        return answer


def granted(scripted: Scripted, machine: ObservedResource = MACHINE, *, looks: bool = False) -> tuple[AgentRole, Time]:
    time = Time()
    limits = RequestLimits(time.deadline(3600))
    limits.interrupt = InstantInterrupt(time)
    made = Rights(Clients(Access(SUBSCRIPTION), limits))
    made._requests = scripted  # type: ignore[assignment]
    return made.look(machine) if looks else made.grant(machine), time


def assigned(definition: str) -> tuple[dict[str, Any], ...]:
    return ({"properties": {"roleDefinitionId": definition}},)


@pytest.mark.parametrize(
    ("answers", "expected", "asked"),
    [
        # The role is created with the first machine, and exists for the others.
        ({}, AgentRole(RoleState.GRANTED), [LIST, LIST_ROLES, MAKE, GIVE]),
        ({"roles": (ROLE,)}, AgentRole(RoleState.GRANTED), [LIST, LIST_ROLES, GIVE]),
        # An existing role is found with one request; one created by an administrator, with two.
        ({"given": assigned(OWN)}, AgentRole(RoleState.HELD), [LIST]),
        (
            {"given": assigned(THEIRS), "roles": ({**ROLE, "id": THEIRS},)},
            AgentRole(RoleState.HELD),
            [LIST, LIST_ROLES],
        ),
        # A caller that may not read may still grant.
        ({"given": DENIED, "roles": (ROLE,)}, AgentRole(RoleState.GRANTED), [LIST, LIST_ROLES, GIVE]),
        ({"given": DENIED, "roles": (ROLE,), "give": EXISTS}, AgentRole(RoleState.HELD), [LIST, LIST_ROLES, GIVE]),
        # A role without the action is updated under its id.
        (
            {"given": assigned(THEIRS), "roles": ({"id": THEIRS},)},
            AgentRole(RoleState.GRANTED),
            [LIST, LIST_ROLES, MAKE, GIVE],
        ),
        # Refusals.
        (
            {"make": DENIED},
            AgentRole(RoleState.REFUSED, DENIED.code, DENIED.message, agent_role.MAKES_ROLES),
            [LIST, LIST_ROLES, MAKE],
        ),
        (
            {"roles": (ROLE,), "give": DENIED},
            AgentRole(RoleState.REFUSED, DENIED.code, DENIED.message, agent_role.ASSIGNS_ROLES),
            [LIST, LIST_ROLES, GIVE],
        ),
        ({"given": BUSY}, AgentRole(RoleState.UNKNOWN, BUSY.code, BUSY.message), [LIST]),
    ],
)
def test_role_requests_follow_their_order(answers: dict[str, Any], expected: AgentRole, asked: list[str]) -> None:
    scripted = Scripted(**answers)
    assert granted(scripted)[0] == expected
    assert scripted.asked == asked


def test_role_is_assigned_to_the_machine_at_the_machine() -> None:
    scripted = Scripted(roles=({**ROLE, "id": THEIRS},))
    granted(scripted)
    ((path, body),) = scripted.sent
    assert path == agent_role.assignment_id(MACHINE.ref.id(SUBSCRIPTION), "p", THEIRS)
    assert body["properties"] == {"roleDefinitionId": THEIRS, "principalId": "p", "principalType": "ServicePrincipal"}


@pytest.mark.parametrize("error", [UNKNOWN_PRINCIPAL, NO_ROLE, BUSY])
def test_unknown_principal_is_retried(error: CloudError) -> None:
    scripted = Scripted(roles=(ROLE,), give=[error, error, ()])
    right, time = granted(scripted)
    assert right == AgentRole(RoleState.GRANTED)
    assert 0 < time.seconds < NEW_SECONDS


def test_unknown_principal_is_retried_only_for_a_while() -> None:
    right, time = granted(Scripted(roles=(ROLE,), give=UNKNOWN_PRINCIPAL))
    assert (right.state, right.code) == (RoleState.REFUSED, "PrincipalNotFound")
    assert NEW_SECONDS - 5 < time.seconds <= NEW_SECONDS


def test_machine_without_an_identity_gets_no_role() -> None:
    scripted = Scripted()
    without_identity = ObservedResource(MACHINE.ref, {})
    assert granted(scripted, without_identity)[0].code == "NoIdentity"
    assert granted(scripted, without_identity, looks=True)[0].state is RoleState.ABSENT
    assert scripted.asked == []


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, AgentRole(RoleState.ABSENT, message="the subscription has no role for it")),
        ({"roles": (ROLE,)}, AgentRole(RoleState.ABSENT, message="the machine does not have the role", has_role=True)),
        ({"roles": (ROLE,), "given": assigned(OWN)}, AgentRole(RoleState.HELD)),
        (
            {"roles": ({"id": OWN},), "given": assigned(OWN)},
            AgentRole(RoleState.ABSENT, message=f"the role no longer allows {agent_role.ACTION}"),
        ),
        ({"roles": DENIED}, AgentRole(RoleState.UNKNOWN, DENIED.code, DENIED.message)),
    ],
)
def test_checking_a_role_changes_nothing(answers: dict[str, Any], expected: AgentRole) -> None:
    scripted = Scripted(**answers)
    assert granted(scripted, looks=True)[0] == expected
    assert scripted.sent == [], "a check changes nothing"
