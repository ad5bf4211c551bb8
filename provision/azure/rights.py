"""Grant a VM the role to deallocate itself, and check whether it has the role."""

from typing import Any

from gpuinfra.provision import agent_role
from gpuinfra.provision.agent_role import AgentRole, RoleState
from gpuinfra.provision.azure.clients import Clients, Requests
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.waiting import retry

API = "2022-04-01"
# Azure may take a while to make new identities and roles visible everywhere.
NEW_SECONDS = 60.0
NOT_KNOWN_YET = frozenset({"PrincipalNotFound", "RoleDefinitionDoesNotExist"})
EXISTS = "RoleAssignmentExists"


class Rights:
    """The role assignments of VMs in one subscription."""

    def __init__(self, clients: Clients) -> None:
        self._subscription = clients.access.subscription
        self._limits = clients.limits
        self._requests = Requests(clients)

    def look(self, machine: ObservedResource) -> AgentRole:
        """Return whether a VM has the role. Changes nothing and never raises."""
        principal = agent_role.principal_of(machine)
        if not principal:
            return AgentRole(RoleState.ABSENT, message="the machine has no identity of its own")
        try:
            definition = self._definition()
            if definition is None:
                return AgentRole(RoleState.ABSENT, message="the subscription has no role for it")
            if not agent_role.is_assigned(self._assignments(machine, principal), str(definition["id"])):
                return AgentRole(RoleState.ABSENT, message="the machine does not have the role", has_role=True)
        except CloudError as error:
            return AgentRole(RoleState.UNKNOWN, error.code, error.message)
        if not agent_role.serves(definition):
            return AgentRole(RoleState.ABSENT, message=f"the role no longer allows {agent_role.ACTION}")
        return AgentRole(RoleState.HELD)

    def has_role(self) -> bool:
        """Return whether the subscription has the role definition, and it allows the action."""
        definition = self._definition()
        return definition is not None and agent_role.serves(definition)

    def grant(self, machine: ObservedResource) -> AgentRole:
        """Grant the role to a VM. Never raises: the result contains what Azure refused."""
        principal = agent_role.principal_of(machine)
        if not principal:
            return AgentRole(RoleState.UNKNOWN, "NoIdentity", "Azure shows no identity of the machine")
        own = agent_role.definition_id(self._subscription, agent_role.definition_guid(self._subscription))
        try:
            assignments = self._may_see(machine, principal)
            if agent_role.is_assigned(assignments, own):
                return AgentRole(RoleState.HELD)
            definition = self._definition()
            found = str(definition["id"]) if definition else own
            is_usable = definition is not None and agent_role.serves(definition)
            if is_usable and agent_role.is_assigned(assignments, found):
                return AgentRole(RoleState.HELD)
            if not is_usable and (refusal := self._define(found)):
                return refusal
            return self._assign(machine, principal, found)
        except CloudError as error:
            return agent_role.refused(error, agent_role.ASSIGNS_ROLES)

    def _may_see(self, machine: ObservedResource, principal: str) -> list[dict[str, Any]]:
        """Return the VM's roles, or an empty list if the caller may not read them, because granting may still work."""
        try:
            return self._assignments(machine, principal)
        except CloudError as error:
            if error.fault is Fault.DENIED:
                return []
            raise

    def _assignments(self, machine: ObservedResource, principal: str) -> list[dict[str, Any]]:
        path = f"{self._id(machine)}/{agent_role.PROVIDER}/roleAssignments"
        return list(self._requests.pages(path, API, {"$filter": f"principalId eq '{principal}'"}))

    def _definition(self) -> dict[str, Any] | None:
        """Return the role definition. It is found by name, because one that an administrator created has another ID."""
        path = f"/subscriptions/{self._subscription}/{agent_role.PROVIDER}/roleDefinitions"
        query = {"$filter": f"roleName eq '{agent_role.role_name(self._subscription)}'"}
        return next(iter(self._requests.pages(path, API, query)), None)

    def _define(self, definition: str) -> AgentRole | None:
        try:
            self._requests.send("PUT", definition, API, agent_role.definition_body(self._subscription))
        except CloudError as error:
            return agent_role.refused(error, agent_role.MAKES_ROLES)
        return None

    def _assign(self, machine: ObservedResource, principal: str, definition: str) -> AgentRole:
        path = agent_role.assignment_id(self._id(machine), principal, definition)
        body, limits = agent_role.assignment_body(principal, definition), self._limits
        try:
            retry(
                lambda: self._requests.send("PUT", path, API, body),
                limits.deadline.within(NEW_SECONDS),
                limits.interrupt.sleep,
                busy_codes=NOT_KNOWN_YET,
            )
        except CloudError as error:
            if error.code == EXISTS:
                return AgentRole(RoleState.HELD)
            raise
        return AgentRole(RoleState.GRANTED)

    def _id(self, machine: ObservedResource) -> str:
        return machine.ref.id(self._subscription)
