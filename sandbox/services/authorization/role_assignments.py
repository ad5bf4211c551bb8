"""Role assignments. They apply to tokens of managed identities."""

import re
from typing import Any

from gpuinfra.sandbox.kernel import access_control as roles
from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.clock import stamp_z
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_content, not_modelled
from gpuinfra.sandbox.kernel.routes import GROUP, RESOURCE, SUBSCRIPTION, Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.authorization.role_definitions import require_guid
from gpuinfra.sandbox.services.common import invalid_filter, require_object, scope_id, section

service = Service()

_ALL = f"/providers/{roles.NAMESPACE}/roleAssignments"
_ONE = f"{_ALL}/{{name}}"


def put_assignment(call: Call) -> Answer:
    """Create an assignment. It cannot be changed later."""
    scope, name = scope_id(call), require_guid(call["name"], "role assignment")
    given = _checked(call, scope)
    cloud, stored = call.cloud, roles.stored_id(call.cloud, "roleAssignments", name)
    existing = next((each for each in roles.assignments(cloud) if each.name.lower() == name), None)
    if existing:
        if _identity(existing.properties) != _identity(given):
            message = "Tenant ID, application ID, principal ID, and scope are not allowed to be updated."
            raise ArmError(409, "RoleAssignmentUpdateNotPermitted", message)
        return Answer(200, existing.body)
    if any(_identity(each.properties) == _identity(given) for each in roles.assignments(cloud)):
        raise ArmError(409, "RoleAssignmentExists", "The role assignment already exists.")
    now = stamp_z(cloud.now)
    made = Resource(stored, "", {}, {"scopeCreated": roles.scope_created(cloud, scope)})
    made.body = {
        "properties": {
            **given,
            "condition": None,
            "conditionVersion": None,
            "createdOn": now,
            "updatedOn": now,
            "createdBy": None,
            "updatedBy": call.principal.id,
            "delegatedManagedIdentityResourceId": None,
        },
        "id": f"{scope}{_ALL}/{name}",
        "type": f"{roles.NAMESPACE}/roleAssignments",
        "name": name,
    }
    cloud.store.put(made, cloud.now)
    return Answer(201, made.body)


def _get_assignment(call: Call) -> Answer:
    found = _find(call)
    if found is None:
        raise ArmError(404, "RoleAssignmentNotFound", f"The role assignment '{call['name']}' is not found.")
    return Answer(200, found.body)


def _delete_assignment(call: Call) -> Answer:
    found = _find(call)
    if found is None:
        return Answer(204)
    call.cloud.store.delete(found.id)
    return Answer(200, found.body)


def list_assignments(call: Call) -> Answer:
    """List the assignments at a scope, above it and, without `atScope()`, below it."""
    scope = scope_id(call)
    principal, at_scope = _filter(call.query.get("$filter", ""))
    shown = [
        each.body
        for each in roles.assignments(call.cloud)
        if principal in {None, each.properties["principalId"].lower()}
        and (
            roles.is_within(scope, each.properties["scope"])
            or (not at_scope and roles.is_within(each.properties["scope"], scope))
        )
    ]
    return Answer(200, {"value": shown})


def _filter(text: str) -> tuple[str | None, bool]:
    """Return the principal, and whether `atScope()` is given; `principalId eq '…'` and `assignedTo('…')` name one."""
    principal, at_scope = None, False
    for part in re.split(r"\s+and\s+", text.strip(), flags=re.IGNORECASE) if text.strip() else []:
        if found := re.fullmatch(r"principalId\s+eq\s+'([^']*)'|assignedTo\('([^']*)'\)", part, re.IGNORECASE):
            principal = (found[1] or found[2] or "").lower()
        elif re.fullmatch(r"atScope\(\)", part, re.IGNORECASE):
            at_scope = True
        else:
            raise invalid_filter(text)
    return principal, at_scope


def _find(call: Call) -> Resource | None:
    scope = scope_id(call)
    for each in roles.assignments(call.cloud):
        if each.name.lower() == call["name"].lower() and each.properties["scope"].lower() == scope.lower():
            return each
    return None


def _identity(properties: dict[str, Any]) -> tuple[str, str, str]:
    """Return what makes two assignments the same."""
    definition = properties["roleDefinitionId"].lower().rpartition("/")[2]
    return properties["scope"].lower(), properties["principalId"].lower(), definition


def _checked(call: Call, scope: str) -> dict[str, Any]:
    properties = section(require_object(call), "properties")
    definition_id, principal = properties.get("roleDefinitionId"), properties.get("principalId")
    description = properties.get("description")
    if not isinstance(definition_id, str) or not isinstance(principal, str):
        raise invalid_content("The request content was invalid: roleDefinitionId and principalId must be texts.")
    if description is not None and not isinstance(description, str):
        raise invalid_content("The request content was invalid: 'description' must be a text.")
    if properties.get("condition") is not None:
        raise not_modelled("conditions of role assignments")
    require_guid(principal, "principal")
    definition = roles.find_definition(call.cloud, definition_id)
    if definition is None:
        name = definition_id.rpartition("/")[2]
        message = f"The specified role definition with ID '{name}' does not exist."
        raise ArmError(404, "RoleDefinitionDoesNotExist", message)
    if not roles.is_principal(call.cloud, principal):
        raise ArmError(
            400,
            "PrincipalNotFound",
            f"Principal {principal.replace('-', '')} does not exist in the directory {call.cloud.tenant}. Check that "
            "you have the correct principal ID. If you are creating this principal and then immediately assigning a "
            "role, this error might be related to a replication delay. In this case, set the role assignment "
            "principalType property to a value, such as ServicePrincipal, User, or Group.  See https://aka.ms/docs-principaltype",
        )
    return {
        "roleDefinitionId": definition["id"],
        "principalId": principal,
        "principalType": "ServicePrincipal",
        "scope": scope,
        "description": description,
    }


for _path in (SUBSCRIPTION, GROUP, RESOURCE):
    service.route("PUT", f"{_path}{_ONE}")(put_assignment)
    service.route("GET", f"{_path}{_ONE}")(_get_assignment)
    service.route("DELETE", f"{_path}{_ONE}")(_delete_assignment)
    service.route("GET", f"{_path}{_ALL}")(list_assignments)
