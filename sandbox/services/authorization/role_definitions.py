"""Role definitions, built-in and custom, and the caller's permissions."""

import uuid
from typing import Any

from gpuinfra.sandbox.kernel import access_control as roles
from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.clock import stamp_z
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_content
from gpuinfra.sandbox.kernel.routes import GROUP, RESOURCE, SUBSCRIPTION, Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import check_scope, parse_filter, require_object, scope_id, section

service = Service()

_ALL = f"/providers/{roles.NAMESPACE}/roleDefinitions"
_LISTS = ("actions", "notActions", "dataActions", "notDataActions")


def _list_definitions(call: Call) -> Answer:
    check_scope(call)
    wanted = parse_filter(call.query.get("$filter", "").replace("atScope()", ""), {"rolename", "type"})
    found = [roles.built_in_body(name, call.cloud.subscription) for name in roles.BUILT_IN]
    found += [each.body for each in roles.kept(call.cloud, "roleDefinitions")]
    shown = [
        body
        for body in found
        if body
        and wanted.get("rolename", body["properties"]["roleName"]).lower() == body["properties"]["roleName"].lower()
        and wanted.get("type", body["properties"]["type"]).lower() == body["properties"]["type"].lower()
    ]
    return Answer(200, {"value": shown})


def _get_definition(call: Call) -> Answer:
    check_scope(call)
    found = roles.find_definition(call.cloud, call["name"])
    if found is None:
        message = f"The specified role definition with ID '{call['name']}' does not exist."
        raise ArmError(404, "RoleDefinitionDoesNotExist", message)
    return Answer(200, found)


def _put_definition(call: Call) -> Answer:
    check_scope(call)
    name = require_guid(call["name"], "role definition")
    if name in roles.BUILT_IN:
        raise ArmError(403, "RoleDefinitionUpdateNotPermitted", "Built-in role definitions cannot be changed.")
    properties = section(require_object(call), "properties")
    given = _checked(call, name, properties)
    cloud, stored = call.cloud, roles.stored_id(call.cloud, "roleDefinitions", name)
    existing = cloud.store.get(stored)
    now = stamp_z(cloud.now)
    definition = existing or Resource(stored, "", {})
    old = existing.properties if existing else {"createdOn": now, "createdBy": call.principal.id}
    definition.body = {
        "properties": {
            **given,
            "createdOn": old["createdOn"],
            "updatedOn": now,
            "createdBy": old["createdBy"],
            "updatedBy": call.principal.id,
        },
        "id": f"/subscriptions/{cloud.subscription}{_ALL}/{name}",
        "type": f"{roles.NAMESPACE}/roleDefinitions",
        "name": name,
    }
    cloud.store.put(definition, cloud.now)
    return Answer(201, definition.body)


def _delete_definition(call: Call) -> Answer:
    check_scope(call)
    if call["name"].lower() in roles.BUILT_IN:
        raise ArmError(403, "RoleDefinitionDeleteNotPermitted", "Built-in role definitions cannot be deleted.")
    definition = call.cloud.store.get(roles.stored_id(call.cloud, "roleDefinitions", call["name"]))
    if definition is None:
        return Answer(204)
    own = definition.body["id"].lower()
    if any(each.properties["roleDefinitionId"].lower() == own for each in roles.assignments(call.cloud)):
        message = "There are existing role assignments referencing role (code: RoleDefinitionHasAssignments)"
        raise ArmError(400, "RoleDefinitionHasAssignments", message)
    call.cloud.store.delete(definition.id)
    return Answer(200, definition.body)


def _list_permissions(call: Call) -> Answer:
    """List the caller's permissions in the subscription or resource group; every caller may ask."""
    return Answer(200, {"value": roles.permissions_of(call.cloud, call.principal, scope_id(call))})


def require_guid(text: str, what: str) -> str:
    """Return the name of a role or assignment, which has to be a GUID."""
    try:
        return str(uuid.UUID(text))
    except ValueError:
        message = f"The {what} ID '{text}' is not valid. The {what} ID must be a GUID."
        raise ArmError(400, f"Invalid{what.title().replace(' ', '')}Id", message) from None


def _checked(call: Call, name: str, properties: dict[str, Any]) -> dict[str, Any]:
    role_name = properties.get("roleName")
    if not isinstance(role_name, str) or not role_name.strip():
        raise invalid_content("The request content was invalid: 'properties.roleName' must be a text.")
    taken = {role["roleName"].lower(): built_in for built_in, role in roles.BUILT_IN.items()}
    taken |= {each.properties["roleName"].lower(): each.name for each in roles.kept(call.cloud, "roleDefinitions")}
    if taken.get(role_name.lower(), name).lower() != name:
        message = f"A custom role with the name '{role_name}' already exists in this directory. Use a different name"
        raise ArmError(409, "RoleDefinitionWithSameNameExists", message)
    scopes = section(properties, "assignableScopes", list)
    own = f"/subscriptions/{call.cloud.subscription}".lower()
    if not scopes or not all(isinstance(each, str) and f"{each.lower()}/".startswith(f"{own}/") for each in scopes):
        message = "The assignable scopes of a role have to lie in the subscription, and there must be one."
        raise ArmError(400, "InvalidAssignableScopes", message)
    description = properties.get("description") or ""
    if not isinstance(description, str):
        raise invalid_content("The request content was invalid: 'properties.description' must be a text.")
    return {
        "roleName": role_name,
        "type": "CustomRole",
        "description": description,
        "assignableScopes": scopes,
        "permissions": [_permission(each) for each in section(properties, "permissions", list)],
    }


def _permission(given: Any) -> dict[str, list[str]]:
    if not isinstance(given, dict):
        raise invalid_content("The request content was invalid: a permission must be an object.")
    permission = {name: section(given, name, list) for name in _LISTS}
    if not all(isinstance(action, str) for actions in permission.values() for action in actions):
        raise invalid_content("The request content was invalid: actions must be texts.")
    return permission


for _scope in (SUBSCRIPTION, GROUP):
    service.route("GET", f"{_scope}{_ALL}/{{name}}")(_get_definition)
    service.route("PUT", f"{_scope}{_ALL}/{{name}}")(_put_definition)
    service.route("DELETE", f"{_scope}{_ALL}/{{name}}")(_delete_definition)
    service.route("GET", f"{_scope}/providers/{roles.NAMESPACE}/{roles.PERMISSIONS}")(_list_permissions)
# `az role assignment create` looks for a role by name at the scope of the assignment.
for _scope in (SUBSCRIPTION, GROUP, RESOURCE):
    service.route("GET", f"{_scope}{_ALL}")(_list_definitions)
