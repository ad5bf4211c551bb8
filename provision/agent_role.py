"""The role with which a VM can deallocate itself: one action, on that VM only. Pure."""

import json
import shlex
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market import Grant
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.templates import read_template

ACTION = "Microsoft.Compute/virtualMachines/deallocate/action"
MAKES_ROLES = "Microsoft.Authorization/roleDefinitions/write"
ASSIGNS_ROLES = "Microsoft.Authorization/roleAssignments/write"
PROVIDER = "providers/Microsoft.Authorization"
# These errors are temporary, so they do not show what the caller may do.
_PASSING = frozenset(
    {
        Fault.ABSENT,
        Fault.BUSY,
        Fault.INTERRUPTED,
        Fault.LOGIN,
        Fault.THROTTLED,
        Fault.TIMEOUT,
        Fault.UNREACHABLE,
    }
)


class RoleState(StrEnum):
    """Whether a VM has the role."""

    GRANTED = "granted"
    """Granted just now."""
    HELD = "held"
    """Granted earlier."""
    ABSENT = "absent"
    """Not granted, and no grant was attempted."""
    REFUSED = "refused"
    """Azure does not let the caller grant it."""
    UNKNOWN = "unknown"
    """Azure did not answer."""


@dataclass(frozen=True, slots=True)
class AgentRole:
    """The result of checking or granting the role."""

    state: RoleState
    code: str = ""
    """Azure's error code, if it refused or did not answer."""
    message: str = ""
    action: str = ""
    """The permission that the caller lacks."""
    has_role: bool = False
    """Whether the subscription has the role although the VM does not; set only by a check."""

    @property
    def is_held(self) -> bool:
        """Whether the guest agent can deallocate its VM."""
        return self.state in {RoleState.GRANTED, RoleState.HELD}

    @property
    def word(self) -> str:
        """The guest agent's state, for JSON output."""
        if self.state is RoleState.UNKNOWN:
            return "unknown"
        return "armed" if self.is_held else "not-armed"


def refused(error: CloudError, action: str) -> AgentRole:
    """Return the result for an error during the grant."""
    state = RoleState.UNKNOWN if error.fault in _PASSING else RoleState.REFUSED
    return AgentRole(state, error.code, error.message, action if error.fault is Fault.DENIED else "")


def principal_of(machine: ObservedResource) -> str:
    """Return the ID of the VM's managed identity, or an empty string if it has none (yet)."""
    return str((machine.body.get("identity") or {}).get("principalId") or "")


# The role definition
def role_of(subscription: str) -> dict[str, Any]:
    """Return the role in the format of `az role definition create`.

    Role names are unique in a tenant, which may have many subscriptions, so each subscription has its own name.
    """
    role: dict[str, Any] = json.loads(read_template("role.json").replace("{subscription}", subscription.lower()))
    return role


def role_name(subscription: str) -> str:
    """Return the role's name."""
    return str(role_of(subscription)["Name"])


def definition_guid(subscription: str) -> str:
    """Return a GUID that is the same for every client, so that concurrent clients create one role."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, role_name(subscription)))


def definition_id(subscription: str, guid: str) -> str:
    """Return the resource ID of a role definition."""
    return f"/subscriptions/{subscription}/{PROVIDER}/roleDefinitions/{guid}"


def definition_body(subscription: str) -> dict[str, Any]:
    """Return the role definition in ARM's format."""
    role = role_of(subscription)
    permission = {"actions": role["Actions"], "notActions": role["NotActions"]}
    return {
        "properties": {
            "roleName": role["Name"],
            "type": "CustomRole",
            "description": role["Description"],
            "assignableScopes": role["AssignableScopes"],
            "permissions": [permission],
        }
    }


def serves(definition: Mapping[str, Any]) -> bool:
    """Return whether a role definition, which administrators can change, still allows the action."""
    permissions = (definition.get("properties") or {}).get("permissions") or []
    grants = (Grant(tuple(each.get("actions") or ()), tuple(each.get("notActions") or ())) for each in permissions)
    return any(grant.allows(ACTION) for grant in grants)


# The role assignment
def assignment_id(machine_id: str, principal: str, definition: str) -> str:
    """Return the ID of the assignment on this VM only. A recreated VM has a new identity, so a new ID."""
    words = " ".join((machine_id, principal, guid_of(definition))).casefold()
    return f"{machine_id}/{PROVIDER}/roleAssignments/{uuid.uuid5(uuid.NAMESPACE_URL, words)}"


def assignment_body(principal: str, definition: str) -> dict[str, Any]:
    """Return the assignment's body. With the principal type, Azure accepts an identity that it cannot see yet."""
    return {
        "properties": {"roleDefinitionId": definition, "principalId": principal, "principalType": "ServicePrincipal"}
    }


def guid_of(resource_id: str) -> str:
    """Return the last segment of an ID, because Azure's prefixes vary."""
    return resource_id.rstrip("/").rpartition("/")[2].casefold()


def is_assigned(assignments: Iterable[Mapping[str, Any]], definition: str) -> bool:
    """Return whether one of the assignments grants this role."""
    return any(guid_of(_role(each)) == guid_of(definition) for each in assignments)


def _role(assignment: Mapping[str, Any]) -> str:
    return str((assignment.get("properties") or {}).get("roleDefinitionId") or "")


# Commands for an administrator
def define_command(subscription: str) -> str:
    """Return the command that creates the role, once per subscription."""
    return f"az role definition create --role-definition {shlex.quote(json.dumps(role_of(subscription)))}"


def assign_command(subscription: str, machine_id: str, principal: str) -> str:
    """Return the command that assigns the role to a VM."""
    return (
        f"az role assignment create --assignee-object-id {principal} --assignee-principal-type ServicePrincipal "
        f"--role {shlex.quote(role_name(subscription))} --scope {shlex.quote(machine_id)}"
    )
