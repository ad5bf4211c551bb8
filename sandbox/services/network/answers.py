"""How network resources are answered: one, a list, a write that goes on, a deletion; nested ones as well."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_content
from gpuinfra.sandbox.kernel.ids import key
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import (
    check_conditions,
    check_tags,
    page,
    require_group,
    require_object,
    require_resource,
    require_subscription,
)
from gpuinfra.sandbox.services.network.references import Uses, keep, uses
from gpuinfra.sandbox.services.network.tracked import NESTED, Kind, begin, check_idle, find, nested_item, require_parent

Show = Callable[[Resource, Uses], dict[str, Any]]
"""A resource's body as it is answered, given who uses what."""


def with_etag(resource: Resource) -> dict[str, Any]:
    """The body, a copy, with the ETag in it and in all that is nested."""
    body = copy.deepcopy(resource.body)
    body["etag"] = resource.etag
    for list_name in NESTED:
        for item in body["properties"].get(list_name, []):
            item["etag"] = resource.etag
    return body


def answer_get(call: Call, kind: Kind, show: Show) -> Answer:
    """Read one."""
    wanted, _ = find(call, kind)
    found = require_resource(call, wanted, kind.full_type, call["name"])
    return Answer(200, show(found, uses(call.cloud, found.id)), {"ETag": found.etag})


def answer_list(call: Call, kind: Kind, show: Show) -> Answer:
    """Read those of a group, or of the subscription, a page at a time."""
    group = None
    if "group" in call.parameters:
        group = require_group(call).name
    else:
        require_subscription(call)
    index = uses(call.cloud)
    return page(call, kind=kind.full_type, group=group, show=lambda resource: show(resource, index))


def answer_put(call: Call, kind: Kind, resource: Resource, *, new: bool, show: Show) -> Answer:
    """A PUT was accepted: the operation goes on."""
    operation = begin(call, kind, resource, "put")
    body = show(resource, uses(call.cloud, resource.id))
    return call.cloud.operations.created(call, operation, body, new=new)


def answer_patch(call: Call, kind: Kind, show: Show) -> Answer:
    """Change the tags, which is all that Microsoft.Network lets PATCH do; it takes no time."""
    wanted, _ = find(call, kind, for_write=True)
    found = require_resource(call, wanted, kind.full_type, call["name"])
    body = require_object(call)
    check_conditions(call, found)
    if set(body) - {"tags"}:
        raise invalid_content("The request content was invalid: a PATCH of this resource may have only 'tags'.")
    found.body["tags"] = check_tags(body)
    keep(call.cloud, found)
    return Answer(200, show(found, uses(call.cloud, found.id)))


def answer_delete(call: Call, kind: Kind, check: Callable[[Cloud, Resource], None]) -> Answer:
    """Delete one that nothing uses: `check` raises if something does."""
    _, found = find(call, kind, for_write=True)
    check_conditions(call, found)
    if found is None:
        return Answer(204)
    check(call.cloud, found)
    return call.cloud.operations.accepted(call, begin(call, kind, found, "delete"))


# Answers for nested resources


def nested_get(call: Call, outer: Kind, kind: Kind, show: Show) -> Answer:
    """Read a nested one."""
    parent = require_parent(call, outer)
    body = shown_item(call, parent, kind, call["nested"], show)
    return Answer(200, body, {"ETag": parent.etag})


def nested_list(call: Call, outer: Kind, kind: Kind, show: Show) -> Answer:
    """Read all that are nested in one."""
    parent = require_parent(call, outer)
    return Answer(200, {"value": show(parent, uses(call.cloud, parent.id))["properties"][kind.list_name]})


def nested_put(call: Call, kind: Kind, parent: Resource, item: dict[str, Any], show: Show) -> Answer:
    """A PUT of a nested one was accepted: it takes the place of the one of its name."""
    new = nested_item(parent, kind, item["name"]) is None
    rest = parent.properties[kind.list_name]
    replaced = [item if other["name"].lower() == item["name"].lower() else other for other in rest]
    parent.properties[kind.list_name] = [*rest, item] if new else replaced
    operation = begin(call, kind, parent, "put", item["name"])
    body = shown_item(call, parent, kind, item["name"], show)
    return call.cloud.operations.created(call, operation, body, new=new)


def nested_delete(call: Call, outer: Kind, kind: Kind, check: Callable[[Cloud, dict[str, Any]], None]) -> Answer:
    """Delete a nested one that nothing uses."""
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
    """A nested one as it is answered."""
    for item in show(parent, uses(call.cloud, parent.id))["properties"][kind.list_name]:
        if item["name"].lower() == name.lower():
            return dict(item)
    raise ArmError(404, "NotFound", f"Resource {parent.id}/{kind.list_name}/{name} not found.", details=[])
