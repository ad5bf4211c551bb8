"""The right of a machine to switch itself off: one action, on that machine alone. Pure."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpuinfra.provision.cloud import ObservedResource
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market.port import Grant
from gpuinfra.templates import read_template

ACTION = "Microsoft.Compute/virtualMachines/deallocate/action"
MAKES_ROLES = "Microsoft.Authorization/roleDefinitions/write"
ASSIGNS_ROLES = "Microsoft.Authorization/roleAssignments/write"
PROVIDER = "providers/Microsoft.Authorization"

# Azure may say something else in a moment, so these say nothing of what the caller may do.
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


class Holding(StrEnum):
    """Whether a machine has the right."""

    GRANTED = "granted"
    """It was given just now."""
    HELD = "held"
    """It was there already."""
    ABSENT = "absent"
    """It is not there, and nobody tried to give it."""
    REFUSED = "refused"
    """Azure does not let the caller give it."""
    UNKNOWN = "unknown"
    """Azure did not say."""


@dataclass(frozen=True, slots=True)
class AgentRole:
    """What came of asking for it, or of giving it."""

    holding: Holding
    code: str = ""
    """Azure's, where it refused or did not say."""
    message: str = ""
    action: str = ""
    """What the caller would have to be allowed."""
    has_role: bool = False
    """Whether the subscription has the role, though the machine does not have it; known only of what was looked at."""

    @property
    def is_held(self) -> bool:
        """Whether the guest agent can switch its machine off."""
        return self.holding in {Holding.GRANTED, Holding.HELD}

    @property
    def word(self) -> str:
        """For programs: what the guest agent is."""
        return "armed" if self.is_held else "unknown" if self.holding is Holding.UNKNOWN else "not-armed"


def refused(error: CloudError, action: str) -> AgentRole:
    """What an error means that came up when the right was given."""
    holding = Holding.UNKNOWN if error.fault in _PASSING else Holding.REFUSED
    return AgentRole(holding, error.code, error.message, action if error.fault is Fault.DENIED else "")


def principal_of(machine: ObservedResource) -> str:
    """Who the machine itself is in Azure's directory; empty where it is nobody, or not yet."""
    return str((machine.body.get("identity") or {}).get("principalId") or "")


# The role


def role_of(subscription: str) -> dict[str, Any]:
    """The role, in the form that `az role definition create` reads.

    Names of roles are unique in a directory, which may have many subscriptions: so each has one of its own.
    """
    role: dict[str, Any] = json.loads(read_template("role.json").replace("{subscription}", subscription.lower()))
    return role


def role_name(subscription: str) -> str:
    """What the role is called."""
    return str(role_of(subscription)["Name"])


def definition_guid(subscription: str) -> str:
    """The same wherever it is made from, so that two who make it at once make one."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, role_name(subscription)))


def definition_id(subscription: str, guid: str) -> str:
    """The id that Azure knows a role by."""
    return f"/subscriptions/{subscription}/{PROVIDER}/roleDefinitions/{guid}"


def definition_body(subscription: str) -> dict[str, Any]:
    """The role in ARM's own words."""
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
    """Whether a role, which anybody who may can change, still allows what it is for."""
    permissions = (definition.get("properties") or {}).get("permissions") or []
    grants = (Grant(tuple(each.get("actions") or ()), tuple(each.get("notActions") or ())) for each in permissions)
    return any(grant.allows(ACTION) for grant in grants)


# Its assignment


def assignment_id(machine_id: str, principal: str, definition: str) -> str:
    """At the machine and nowhere else. A machine that is made anew is another principal, and has an id of its own."""
    words = " ".join((machine_id, principal, guid_of(definition))).casefold()
    return f"{machine_id}/{PROVIDER}/roleAssignments/{uuid.uuid5(uuid.NAMESPACE_URL, words)}"


def assignment_body(principal: str, definition: str) -> dict[str, Any]:
    """Who gets which role. Azure believes in a principal that it cannot see yet only if it is told of what type."""
    return {
        "properties": {"roleDefinitionId": definition, "principalId": principal, "principalType": "ServicePrincipal"}
    }


def guid_of(resource_id: str) -> str:
    """The last word of an id: Azure spells what is before it in more than one way."""
    return resource_id.rstrip("/").rpartition("/")[2].casefold()


def is_assigned(assignments: Iterable[Mapping[str, Any]], definition: str) -> bool:
    """Whether one of the assignments gives this role."""
    return any(guid_of(_role(each)) == guid_of(definition) for each in assignments)


def _role(assignment: Mapping[str, Any]) -> str:
    return str((assignment.get("properties") or {}).get("roleDefinitionId") or "")


# For an administrator


def define_command(subscription: str) -> str:
    """What makes the role, once in a subscription."""
    return f"az role definition create --role-definition {shlex.quote(json.dumps(role_of(subscription)))}"


def assign_command(subscription: str, machine_id: str, principal: str) -> str:
    """What gives it to a machine."""
    return (
        f"az role assignment create --assignee-object-id {principal} --assignee-principal-type ServicePrincipal "
        f"--role {shlex.quote(role_name(subscription))} --scope {shlex.quote(machine_id)}"
    )
