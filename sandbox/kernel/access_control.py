"""Role-based access control: managed identities need role assignments, the tenant's own client is Owner.

With the fault `read-only` the client is Reader.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from gpuinfra.sandbox.kernel.call import CLOUD_ITSELF, Call, Principal
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.faults import READ_ONLY
from gpuinfra.sandbox.kernel.routes import ResourceId, key
from gpuinfra.sandbox.kernel.store import Resource

OWNER, READER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635", "acdd72a7-3385-48ef-bd42-f606fba81ae7"
BUILT_IN: dict[str, dict[str, Any]] = {
    OWNER: {
        "roleName": "Owner",
        "description": "Grants full access to manage all resources, including the ability to assign roles in Azure "
        "RBAC.",
        "actions": ["*"],
        "notActions": [],
    },
    "b24988ac-6180-42a0-ab88-20f7382dd24c": {
        "roleName": "Contributor",
        "description": "Grants full access to manage all resources, but does not allow you to assign roles in Azure "
        "RBAC, manage assignments in Azure Blueprints, or share image galleries.",
        "actions": ["*"],
        "notActions": (
            "Microsoft.Authorization/*/Delete Microsoft.Authorization/*/Write "
            "Microsoft.Authorization/elevateAccess/Action Microsoft.Blueprint/blueprintAssignments/write "
            "Microsoft.Blueprint/blueprintAssignments/delete Microsoft.Compute/galleries/share/action"
        ).split(),
    },
    READER: {
        "roleName": "Reader",
        "description": "View all resources, but does not allow you to make any changes.",
        "actions": ["*/read"],
        "notActions": [],
    },
    "9980e02c-c2be-4d73-94e8-173b1dc7cf3c": {
        "roleName": "Virtual Machine Contributor",
        "description": "Lets you manage virtual machines, but not access to them, and not the virtual network or "
        "storage account they're connected to.",
        "actions": (
            "Microsoft.Authorization/*/read Microsoft.Compute/availabilitySets/* Microsoft.Compute/locations/* "
            "Microsoft.Compute/virtualMachines/* Microsoft.Compute/virtualMachineScaleSets/* "
            "Microsoft.Compute/disks/write Microsoft.Compute/disks/read Microsoft.Compute/disks/delete "
            "Microsoft.DevTestLab/schedules/* Microsoft.Insights/alertRules/* Microsoft.Network/locations/* "
            "Microsoft.Network/networkInterfaces/* Microsoft.Network/networkSecurityGroups/join/action "
            "Microsoft.Network/networkSecurityGroups/read Microsoft.Network/publicIPAddresses/join/action "
            "Microsoft.Network/publicIPAddresses/read Microsoft.Network/virtualNetworks/read "
            "Microsoft.Network/virtualNetworks/subnets/join/action Microsoft.ResourceHealth/availabilityStatuses/read "
            "Microsoft.Resources/deployments/* Microsoft.Resources/subscriptions/resourceGroups/read "
            "Microsoft.SerialConsole/serialPorts/connect/action Microsoft.Support/*"
        ).split(),
        "notActions": [],
    },
}


def built_in_body(name: str, subscription: str) -> dict[str, Any] | None:
    """Return a built-in role as ARM shows it."""
    role = BUILT_IN.get(name.lower())
    if role is None:
        return None
    permission = {"actions": role["actions"], "notActions": role["notActions"], "dataActions": [], "notDataActions": []}
    return {
        "properties": {
            "roleName": role["roleName"],
            "type": "BuiltInRole",
            "description": role["description"],
            "assignableScopes": ["/"],
            "permissions": [permission],
            "createdOn": "2015-02-02T21:55:09.8806423Z",
            "updatedOn": "2023-07-10T15:10:53.8810757Z",
            "createdBy": None,
            "updatedBy": None,
        },
        "id": f"/subscriptions/{subscription}/providers/Microsoft.Authorization/roleDefinitions/{name.lower()}",
        "type": "Microsoft.Authorization/roleDefinitions",
        "name": name.lower(),
    }


def allows(definition: dict[str, Any], action: str) -> bool:
    """Whether one of the role's permissions includes the action and does not exclude it."""
    return any(
        _matches(permission.get("actions"), action) and not _matches(permission.get("notActions"), action)
        for permission in definition["properties"]["permissions"]
    )


def _matches(patterns: list[str] | None, action: str) -> bool:
    return any(
        re.fullmatch(".*".join(re.escape(part) for part in pattern.lower().split("*")), action.lower())
        for pattern in patterns or []
    )


NAMESPACE, PERMISSIONS = "Microsoft.Authorization", "permissions"
# Roles and assignments can have any scope, but stored resources need a group: this name is invalid for clients.
KEPT_IN = "$authorization"
_MACHINES, _IDENTITIES = "microsoft.compute/virtualmachines", "microsoft.managedidentity/userassignedidentities"
# Every authenticated caller may poll operations and read its own permissions.
_OPEN = re.compile(
    r"/(locations/\{location\}/(operations|operationResults)|operationStatuses|operationresults)/\{id\}"
    rf"|/{re.escape(NAMESPACE)}/{PERMISSIONS}$"
)


def check_permission(call: Call) -> None:
    """Raise ARM's 403 if the caller's roles do not allow the call."""
    found = call.cloud.router.find(call.method, call.path)
    if not isinstance(found, tuple):
        return  # no such route: dispatch raises the error
    route = found[0]
    scope = scope_of(call)
    if _OPEN.search(route.pattern):
        return
    if any(allows(role, route.action) for role in _roles(call.cloud, call.principal, scope)):
        return
    raise ArmError(
        403,
        "AuthorizationFailed",
        f"The client '{call.principal.id}' with object id '{call.principal.id}' does not have authorization to perform "
        f"action '{route.action}' over scope '{scope}' or the scope is invalid. If access was recently granted, please "
        "refresh your credentials.",
    )


def scope_of(call: Call) -> str:
    """Return the scope that a request reads or changes: its path without a POST's verb."""
    path = "/" + "/".join(unquote(part) for part in call.path.strip("/").split("/"))
    return path.rpartition("/")[0] if call.method == "POST" else path


def permissions_of(cloud: Cloud, principal: Principal, scope: str) -> list[dict[str, Any]]:
    """Return what the caller's roles allow at a scope and below it."""
    return [each for role in _roles(cloud, principal, scope) for each in role["properties"]["permissions"]]


def _roles(cloud: Cloud, principal: Principal, scope: str) -> Iterator[dict[str, Any]]:
    """Yield the roles that apply at a scope, one for each assignment."""
    if principal.is_owner:
        is_reader = principal != CLOUD_ITSELF and cloud.faults.look(READ_ONLY, resource_id=scope, region="")
        names = [READER if is_reader else OWNER]
    else:
        names = [
            each.properties["roleDefinitionId"]
            for each in assignments(cloud)
            if each.properties["principalId"].lower() == principal.id.lower()
            and is_within(scope, each.properties["scope"])
        ]
    for name in names:
        if definition := find_definition(cloud, name):
            yield definition


def is_within(scope: str, other: str) -> bool:
    """Whether a scope is another one or below it."""
    own, outer = key(scope), key(other)
    return own == outer or own.startswith(f"{outer}/")


# Stored roles, assignments and locks


def stored_id(cloud: Cloud, kind: str, name: str) -> str:
    """Return the id under which a role, assignment or lock is stored. Their names are unique in the tenant."""
    return str(ResourceId(cloud.subscription, KEPT_IN, NAMESPACE, ((kind, name),)))


def kept(cloud: Cloud, kind: str) -> list[Resource]:
    """Return all custom roles, all assignments, or all locks."""
    return cloud.store.resources(kind=f"{NAMESPACE}/{kind}", group=KEPT_IN)


def assignments(cloud: Cloud) -> list[Resource]:
    """Return the role assignments whose scope still exists."""
    return live(cloud, "roleAssignments")


def live(cloud: Cloud, kind: str) -> list[Resource]:
    """Return the assignments or locks whose scope still exists: a scope that is created again has none."""
    return [each for each in kept(cloud, kind) if _is_live(cloud, each)]


def _is_live(cloud: Cloud, found: Resource) -> bool:
    created: float = found.hidden["scopeCreated"]
    return scope_created(cloud, found.hidden.get("scope") or found.properties["scope"]) == created


def scope_created(cloud: Cloud, scope: str) -> float | None:
    """Return when a scope was created, or None if it does not exist. For the subscription it is 0."""
    if key(scope) == key(f"/subscriptions/{cloud.subscription}"):
        return 0.0
    resource = cloud.store.get(scope)
    return resource.created if resource else None


def find_definition(cloud: Cloud, definition_id: str) -> dict[str, Any] | None:
    """Return a built-in or custom role by its id."""
    name = definition_id.rstrip("/").rpartition("/")[2]
    if found := built_in_body(name, cloud.subscription):
        return found
    own = cloud.store.get(stored_id(cloud, "roleDefinitions", name))
    return own.body if own else None


def is_principal(cloud: Cloud, principal: str) -> bool:
    """Whether the directory has this principal: a VM's or user-assigned identity, or the tenant's own client."""
    if principal.lower() == str(cloud.store.setting("client-object-id")).lower():
        return True
    row = cloud.store.connection.execute(
        "SELECT 1 FROM resources WHERE (type = ? AND lower(json_extract(body, '$.identity.principalId')) = ?) "
        "OR (type = ? AND lower(json_extract(body, '$.properties.principalId')) = ?) LIMIT 1",
        (_MACHINES, principal.lower(), _IDENTITIES, principal.lower()),
    ).fetchone()
    return row is not None
