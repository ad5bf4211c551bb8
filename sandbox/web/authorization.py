"""What a caller may do: a managed identity what its role assignments say, the tenant's own client everything.

Unless the fault `read-only` is armed: then the client is a Reader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

from gpuinfra.sandbox.kernel.call import CLOUD_ITSELF, Call, Principal
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.faults import READ_ONLY
from gpuinfra.sandbox.kernel.ids import ResourceId, key
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.authorization.roles import OWNER, READER, allows, built_in_body

NAMESPACE, PERMISSIONS = "Microsoft.Authorization", "permissions"
# Roles and their assignments belong to any scope, the store to groups: they are kept in one that nobody can make.
_KEPT_IN = "$authorization"
_MACHINES, _IDENTITIES = "microsoft.compute/virtualmachines", "microsoft.managedidentity/userassignedidentities"
# How an operation goes on is told to everybody who may call at all, and so is what the caller may do.
_OPEN = re.compile(
    r"/(locations/\{location\}/(operations|operationResults)|operationStatuses|operationresults)/\{id\}"
    rf"|/{re.escape(NAMESPACE)}/{PERMISSIONS}$"
)


def check_permission(call: Call) -> None:
    """Raise ARM's 403 where the caller has no right to this."""
    found = call.cloud.router.find(call.method, call.path)
    if not isinstance(found, tuple):
        return  # no such operation, which is said next
    route = found[0]
    scope = _scope(call)
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


def _scope(call: Call) -> str:
    """The path without the verb of a POST."""
    path = "/" + "/".join(unquote(part) for part in call.path.strip("/").split("/"))
    return path.rpartition("/")[0] if call.method == "POST" else path


def permissions_of(cloud: Cloud, principal: Principal, scope: str) -> list[dict[str, Any]]:
    """What the roles of a caller allow at a scope and below it."""
    return [each for role in _roles(cloud, principal, scope) for each in role["properties"]["permissions"]]


def _roles(cloud: Cloud, principal: Principal, scope: str) -> Iterator[dict[str, Any]]:
    """The roles that reach a scope, one for each assignment."""
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
    """Whether a scope is another one or lies in it."""
    own, outer = key(scope), key(other)
    return own == outer or own.startswith(f"{outer}/")


# What is kept


def kept_id(cloud: Cloud, kind: str, name: str) -> str:
    """Where a role or an assignment is kept. Their names are unique in the tenant."""
    return str(ResourceId(cloud.subscription, _KEPT_IN, NAMESPACE, ((kind, name),)))


def kept(cloud: Cloud, kind: str) -> list[Resource]:
    """All roles of the subscription's own, or all assignments."""
    return cloud.store.resources(kind=f"{NAMESPACE}/{kind}", group=_KEPT_IN)


def assignments(cloud: Cloud) -> list[Resource]:
    """The role assignments whose scope is still there: they go with it, and one made again has none."""
    return [each for each in kept(cloud, "roleAssignments") if _is_live(cloud, each)]


def _is_live(cloud: Cloud, assignment: Resource) -> bool:
    created: float = assignment.hidden["scopeCreated"]
    return scope_created(cloud, assignment.properties["scope"]) == created


def scope_created(cloud: Cloud, scope: str) -> float | None:
    """When a scope came to be; None where there is none such. The subscription has always been there."""
    if key(scope) == key(f"/subscriptions/{cloud.subscription}"):
        return 0.0
    resource = cloud.store.get(scope)
    return resource.created if resource else None


def find_definition(cloud: Cloud, definition_id: str) -> dict[str, Any] | None:
    """A role by its id, Azure's own or the subscription's."""
    name = definition_id.rstrip("/").rpartition("/")[2]
    if found := built_in_body(name, cloud.subscription):
        return found
    own = cloud.store.get(kept_id(cloud, "roleDefinitions", name))
    return own.body if own else None


def is_principal(cloud: Cloud, principal: str) -> bool:
    """Whether the directory knows somebody: a machine's identity, one made by itself, or the tenant's own client."""
    if principal.lower() == str(cloud.store.setting("client-object-id")).lower():
        return True
    row = cloud.store.connection.execute(
        "SELECT 1 FROM resources WHERE (type = ? AND lower(json_extract(body, '$.identity.principalId')) = ?) "
        "OR (type = ? AND lower(json_extract(body, '$.properties.principalId')) = ?) LIMIT 1",
        (_MACHINES, principal.lower(), _IDENTITIES, principal.lower()),
    ).fetchone()
    return row is not None
