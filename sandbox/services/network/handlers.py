"""Request handlers that all network resources share: GET, list, PUT, PATCH, DELETE, also for nested resources."""

import copy
from collections.abc import Callable
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_content
from gpuinfra.sandbox.kernel.resource_id import key
from gpuinfra.sandbox.kernel.routes import GROUP, SUBSCRIPTION, Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import (
    check_conditions,
    check_tags,
    page,
    require_group,
    require_object,
    require_resource,
)
from gpuinfra.sandbox.services.network.network_resource import (
    NESTED,
    Kind,
    begin,
    check_idle,
    find,
    nested_item,
    require_parent,
)
from gpuinfra.sandbox.services.network.references import Uses, keep, uses

Show = Callable[[Resource, Uses], dict[str, Any]]
"""Returns the body of an answer, given which resource uses which."""


def with_etag(resource: Resource) -> dict[str, Any]:
    """Return a copy of the body with the ETag in it and in all nested resources."""
    body = copy.deepcopy(resource.body)
    body["etag"] = resource.etag
    for list_name in NESTED:
        for item in body["properties"].get(list_name, []):
            item["etag"] = resource.etag
    return body


def _answer_get(call: Call, kind: Kind, show: Show) -> Answer:
    found = require_resource(call, kind.full_type)
    return Answer(200, show(found, uses(call.cloud, found.id)), {"ETag": found.etag})


def _answer_list(call: Call, kind: Kind, show: Show) -> Answer:
    index = uses(call.cloud)
    return page(call, kind=kind.full_type, show=lambda resource: show(resource, index))


def answer_put(call: Call, kind: Kind, resource: Resource, *, new: bool, show: Show) -> Answer:
    """Start the operation of a PUT and return its answer."""
    operation = begin(call, kind, resource, "put")
    body = show(resource, uses(call.cloud, resource.id))
    return call.cloud.operations.created(call, operation, body, new=new)


def answer_patch(call: Call, kind: Kind, show: Show) -> Answer:
    """Change the tags, which is all that Microsoft.Network lets PATCH do; it completes at once."""
    require_group(call, for_write=True)
    found = require_resource(call, kind.full_type)
    body = require_object(call)
    check_conditions(call, found)
    if set(body) - {"tags"}:
        raise invalid_content("The request content was invalid: a PATCH of this resource may have only 'tags'.")
    found.body["tags"] = check_tags(body)
    keep(call.cloud, found)
    return Answer(200, show(found, uses(call.cloud, found.id)))


def answer_delete(call: Call, kind: Kind, check: Callable[[Cloud, Resource], None]) -> Answer:
    """Start the deletion; `check` raises if something uses the resource."""
    _, found = find(call, kind, for_write=True)
    check_conditions(call, found)
    if found is None:
        return Answer(204)
    check(call.cloud, found)
    return call.cloud.operations.accepted(call, begin(call, kind, found, "delete"))


# Nested resources


def _nested_get(call: Call, outer: Kind, kind: Kind, show: Show) -> Answer:
    parent = require_parent(call, outer)
    body = shown_item(call, parent, kind, call["nested"], show)
    return Answer(200, body, {"ETag": parent.etag})


def _nested_list(call: Call, outer: Kind, kind: Kind, show: Show) -> Answer:
    parent = require_parent(call, outer)
    return Answer(200, {"value": show(parent, uses(call.cloud, parent.id))["properties"][kind.list_name]})


def nested_put(call: Call, kind: Kind, parent: Resource, item: dict[str, Any], show: Show) -> Answer:
    """Start the operation of a nested PUT, which replaces an item of the same name."""
    new = nested_item(parent, kind, item["name"]) is None
    rest = parent.properties[kind.list_name]
    replaced = [item if other["name"].lower() == item["name"].lower() else other for other in rest]
    parent.properties[kind.list_name] = [*rest, item] if new else replaced
    operation = begin(call, kind, parent, "put", item["name"])
    body = shown_item(call, parent, kind, item["name"], show)
    return call.cloud.operations.created(call, operation, body, new=new)


def nested_delete(call: Call, outer: Kind, kind: Kind, check: Callable[[Cloud, dict[str, Any]], None]) -> Answer:
    """Start the deletion of a nested resource; `check` raises if something uses it."""
    parent = require_parent(call, outer, for_write=True)
    found = nested_item(parent, kind, call["nested"])
    check_conditions(call, parent if found else None)
    if found is None:
        return Answer(204)
    target = found["id"]
    if parent.hidden.get("operation", {}).get("target") != key(target):
        check_idle(call, parent, target)
    check(call.cloud, found)
    return call.cloud.operations.accepted(call, begin(call, kind, parent, "delete", found["name"]))


def shown_item(call: Call, parent: Resource, kind: Kind, name: str, show: Show) -> dict[str, Any]:
    """Return a nested resource as it is answered, or raise 404."""
    for item in show(parent, uses(call.cloud, parent.id))["properties"][kind.list_name]:
        if item["name"].lower() == name.lower():
            return dict(item)
    raise ArmError(404, "NotFound", f"Resource {parent.id}/{kind.list_name}/{name} not found.", details=[])


Shows = Callable[[Call], Show]
"""Returns the `Show` for a call: newer API versions show more."""


def path_of(kind: Kind) -> str:
    """Return the path pattern of one resource of a kind."""
    return f"{GROUP}/providers/{kind.full_type}/{{name}}"


def nested_path_of(outer: Kind, kind: Kind) -> str:
    """Return the path pattern of one nested resource."""
    return f"{path_of(outer)}/{kind.list_name}/{{nested}}"


def add_routes(service: Service, kind: Kind, show: Shows, check_unused: Callable[[Cloud, Resource], None]) -> None:
    """Register GET, list, PATCH and DELETE of a kind; each kind has its own PUT."""
    service.get(path_of(kind))(lambda call: _answer_get(call, kind, show(call)))
    service.route("PATCH", path_of(kind))(lambda call: answer_patch(call, kind, show(call)))
    service.route("DELETE", path_of(kind))(lambda call: answer_delete(call, kind, check_unused))
    for scope in (GROUP, SUBSCRIPTION):
        service.route("GET", f"{scope}/providers/{kind.full_type}")(lambda call: _answer_list(call, kind, show(call)))


def add_nested_routes(
    service: Service,
    outer: Kind,
    kind: Kind,
    show: Shows,
    check_unused: Callable[[Cloud, dict[str, Any]], None] | None = None,
) -> None:
    """Register GET and list of a nested kind, and DELETE if `check_unused` is given."""
    path = nested_path_of(outer, kind)
    service.get(path)(lambda call: _nested_get(call, outer, kind, show(call)))
    service.route("GET", path.rpartition("/")[0])(lambda call: _nested_list(call, outer, kind, show(call)))
    if check_unused:
        service.route("DELETE", path)(lambda call: nested_delete(call, outer, kind, check_unused))
