"""Resources of any type: lists, existence, tags."""

from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.clock import stamp_z
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_parameter
from gpuinfra.sandbox.kernel.routes import GROUP, RESOURCE, SUBSCRIPTION, Service, parse_id
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services import common

service = Service()

_FILTERS = {"tagname", "tagvalue", "resourcetype", "name", "location", "resourcegroup"}
_EXPANSIONS = frozenset({"createdtime", "changedtime", "provisioningstate"})
_SHOWN = ("managedBy", "sku", "kind", "plan", "identity", "zones", "tags")
_TAGS = "/providers/Microsoft.Resources/tags/default"


@service.route("GET", f"{SUBSCRIPTION}/resources", action="Microsoft.Resources/subscriptions/resources/read")
@service.route("GET", f"{GROUP}/resources", action="Microsoft.Resources/subscriptions/resourceGroups/resources/read")
def _list(call: Call) -> Answer:
    wanted = common.parse_filter(call.query.get("$filter", ""), _FILTERS)
    expand = {part.strip().lower() for part in call.query.get("$expand", "").split(",") if part.strip()}
    if not expand <= _EXPANSIONS:
        raise invalid_parameter("$expand", f"The value '{call.query['$expand']}' of the query parameter is invalid.")
    return common.page(
        call,
        group=wanted.get("resourcegroup"),
        # As Azure documents, a list that is filtered by tag name and value omits the tags.
        show=lambda resource: _item(resource, expand, with_tags="tagvalue" not in wanted),
        wanted=lambda resource: _is_listed(resource) and _fits(resource, wanted),
    )


def _is_listed(resource: Resource) -> bool:
    """Whether ARM lists a resource: not resource groups, nested resources and deployments."""
    namespace = parse_id(resource.id).namespace.lower()
    return namespace not in {"", "microsoft.resources", "microsoft.authorization"} and "location" in resource.body


def _fits(resource: Resource, wanted: dict[str, str]) -> bool:
    own = {
        "resourcetype": resource.type,
        "name": resource.name,
        "location": resource.location,
        "resourcegroup": resource.group,
    }
    return common.has_tag(resource.body, wanted) and all(
        own[name].lower() == value.lower() for name, value in wanted.items() if name in own
    )


def _item(resource: Resource, expand: set[str], *, with_tags: bool) -> dict[str, Any]:
    body = resource.body
    item = {
        "id": body.get("id", resource.id),
        "name": "/".join(name for _, name in parse_id(resource.id).pairs),
        "type": body.get("type", resource.type),
        "location": body["location"],
        **{name: body[name] for name in _SHOWN if name in body and (with_tags or name != "tags")},
    }
    if "createdtime" in expand:
        item["createdTime"] = stamp_z(resource.created)
    if "changedtime" in expand:
        item["changedTime"] = stamp_z(resource.changed)
    if "provisioningstate" in expand:
        item["provisioningState"] = resource.properties.get("provisioningState", "Succeeded")
    return item


# Tags


def _scope(call: Call) -> Resource:
    return common.check_scope(call) or common.require_group(call)


def _show_tags(resource: Resource) -> Answer:
    body = {"id": f"{resource.id}{_TAGS}", "name": "default", "type": "Microsoft.Resources/tags"}
    return Answer(200, {**body, "properties": {"tags": resource.body.get("tags") or {}}})


def _keep_tags(call: Call, resource: Resource, tags: dict[str, str]) -> Answer:
    common.require_group(call, for_write=True)
    resource.body["tags"] = common.check_tags({"tags": tags})
    return _show_tags(call.cloud.store.put(resource, call.cloud.now))


@service.route("GET", f"{GROUP}{_TAGS}")
@service.route("GET", f"{RESOURCE}{_TAGS}")
def _get_tags(call: Call) -> Answer:
    return _show_tags(_scope(call))


@service.route("PUT", f"{GROUP}{_TAGS}")
@service.route("PUT", f"{RESOURCE}{_TAGS}")
def _put_tags(call: Call) -> Answer:
    scope = _scope(call)
    return _keep_tags(call, scope, common.check_tags(common.section(common.require_object(call), "properties")))


@service.route("PATCH", f"{GROUP}{_TAGS}")
@service.route("PATCH", f"{RESOURCE}{_TAGS}")
def _patch_tags(call: Call) -> Answer:
    scope, body = _scope(call), common.require_object(call)
    given = common.check_tags(common.section(body, "properties"))
    operation = body.get("operation")
    if operation == "Replace":
        return _keep_tags(call, scope, given)
    names = {name.lower(): value for name, value in given.items()}
    existing: dict[str, str] = scope.body.get("tags") or {}
    if operation == "Merge":
        kept = {name: value for name, value in existing.items() if name.lower() not in names}
        return _keep_tags(call, scope, {**kept, **given})
    if operation == "Delete":
        left = {name: value for name, value in existing.items() if names.get(name.lower()) != value}
        return _keep_tags(call, scope, left)
    raise ArmError(
        400, "InvalidTagsPatchOperation", f"The operation '{operation}' is not one of Merge, Replace and Delete."
    )


@service.route("DELETE", f"{GROUP}{_TAGS}")
@service.route("DELETE", f"{RESOURCE}{_TAGS}")
def _delete_tags(call: Call) -> Answer:
    _keep_tags(call, _scope(call), {})
    return Answer(200)
