"""Requests and operations that all network resources share: GET, list, PUT, PATCH, DELETE, also of nested resources."""

import copy
from collections.abc import Callable
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_content, parent_not_found
from gpuinfra.sandbox.kernel.long_running_operations import IN_PROGRESS, Operation
from gpuinfra.sandbox.kernel.routes import GROUP, SUBSCRIPTION, Service, key
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services import common
from gpuinfra.sandbox.services.common import check_conditions, find_resource, require_group, require_object
from gpuinfra.sandbox.services.network.fields import only_known
from gpuinfra.sandbox.services.network.network_resource import (
    DELETING,
    FAILED,
    NAMESPACE,
    NESTED,
    SUCCEEDED,
    UPDATING,
    Kind,
    Uses,
    keep,
    nested_item,
    set_state,
    uses,
)

Show = Callable[[Cloud, Resource, Uses], dict[str, Any]]
"""Returns the body of an answer, given which resource uses which."""
Build = Callable[[Cloud, str, str, dict[str, Any], Resource | None], Resource]
"""Returns a resource from its id, its location, a request's body, and the existing resource."""
BuildItem = Callable[[Cloud, Resource, str, dict[str, Any], str], dict[str, Any]]
"""Returns a nested resource from its parent, its name, a request's body, and the path for errors."""
CheckItems = Callable[[Cloud, Resource, dict[str, Any] | None, list[dict[str, Any]]], None]
"""Raises if the nested resources of a parent do not fit together; the last is new, and replaces the given one."""


def path_of(kind: Kind) -> str:
    """Return the path pattern of one resource of a kind."""
    return f"{GROUP}/providers/{kind.full_type}/{{name}}"


def add_kind(
    service: Service,
    kind: Kind,
    *,
    show: Show,
    check_unused: Callable[[Cloud, Resource], None],
    build: Build | None = None,
    finish: Callable[[Cloud, Resource], None] | None = None,
) -> None:
    """Register the routes and effects of a kind. One without `build` has its own PUT.

    `check_unused` raises if something uses the resource; `finish` changes it after a successful PUT.
    """

    def get(call: Call) -> Answer:
        found = common.require_resource(call, kind.full_type)
        return Answer(200, show(call.cloud, found, uses(call.cloud, found.id)), {"ETag": found.etag})

    def get_list(call: Call) -> Answer:
        index = uses(call.cloud)
        return common.page(call, kind=kind.full_type, show=lambda resource: show(call.cloud, resource, index))

    service.get(path_of(kind))(get)
    for scope in (GROUP, SUBSCRIPTION):
        service.route("GET", f"{scope}/providers/{kind.full_type}")(get_list)
    if build:
        service.route("PUT", path_of(kind))(lambda call: _answer_put(call, kind, build, show))
    service.route("PATCH", path_of(kind))(lambda call: _answer_patch(call, kind, show))
    service.route("DELETE", path_of(kind))(lambda call: _answer_delete(call, kind, check_unused))
    _add_effects(service, kind, finish)


def with_etag(resource: Resource) -> dict[str, Any]:
    """Return a copy of the body with the ETag in it and in all nested resources."""
    body = copy.deepcopy(resource.body)
    body["etag"] = resource.etag
    for list_name in NESTED:
        for item in body["properties"].get(list_name, []):
            item["etag"] = resource.etag
    return body


def check_put(call: Call, kind: Kind) -> tuple[dict[str, Any], Resource | None, str, str]:
    """Return body, existing resource, id and location of a PUT, after the checks that all kinds share."""
    kind.check_name(call["name"])
    body, existing, location = common.check_put(call, kind.full_type)
    only_known({"extendedLocation": body.get("extendedLocation")}, (), kind.type)
    own_id = existing.id if existing else common.resource_id(call, kind.full_type)
    _check_idle(call, existing, own_id)
    return body, existing, own_id, location


def _answer_put(call: Call, kind: Kind, build: Build, show: Show) -> Answer:
    body, existing, own_id, location = check_put(call, kind)
    resource = build(call.cloud, own_id, location, body, existing)
    operation = begin(call, kind, resource, "put")
    shown = show(call.cloud, resource, uses(call.cloud, resource.id))
    return call.cloud.operations.created(call, operation, shown, new=existing is None)


def _answer_patch(call: Call, kind: Kind, show: Show) -> Answer:
    """Change the tags, which is all that Microsoft.Network lets PATCH do; it completes at once."""
    require_group(call, for_write=True)
    found = common.require_resource(call, kind.full_type)
    body = require_object(call)
    check_conditions(call, found)
    if set(body) - {"tags"}:
        raise invalid_content("The request content was invalid: a PATCH of this resource may have only 'tags'.")
    found.body["tags"] = common.check_tags(body)
    keep(call.cloud, found)
    return Answer(200, show(call.cloud, found, uses(call.cloud, found.id)))


def _answer_delete(call: Call, kind: Kind, check_unused: Callable[[Cloud, Resource], None]) -> Answer:
    require_group(call, for_write=True)
    found = find_resource(call, kind.full_type)
    check_conditions(call, found)
    if found is None:
        return Answer(204)
    check_unused(call.cloud, found)
    return call.cloud.operations.accepted(call, begin(call, kind, found, "delete"))


# Nested resources


def add_nested_kind(
    service: Service,
    outer: Kind,
    kind: Kind,
    *,
    show: Show,
    build: BuildItem | None = None,
    check: CheckItems = lambda _cloud, _parent, _old, _items: None,
    check_unused: Callable[[Cloud, dict[str, Any]], None] = lambda _cloud, _item: None,
) -> None:
    """Register the routes and effects of a nested kind. One without `build` is read-only."""

    def get(call: Call) -> Answer:
        parent = require_parent(call, outer)
        return Answer(200, _shown_item(call, parent, kind, call["nested"], show), {"ETag": parent.etag})

    def get_list(call: Call) -> Answer:
        return Answer(200, {"value": _shown_items(call, require_parent(call, outer), kind, show)})

    path = f"{path_of(outer)}/{kind.list_name}"
    service.get(f"{path}/{{nested}}")(get)
    service.route("GET", path)(get_list)
    if build is None:
        return

    def put(call: Call) -> Answer:
        parent, name = require_parent(call, outer, for_write=True), call["nested"]
        old = nested_item(parent, kind, name)
        check_conditions(call, parent if old else None)
        item = build(call.cloud, parent, old["name"] if old else name, require_object(call), "properties")
        _check_idle(call, parent, item["id"])
        present = parent.properties[kind.list_name]
        check(call.cloud, parent, old, [*(each for each in present if each is not old), item])
        parent.properties[kind.list_name] = (
            [item if each is old else each for each in present] if old else [*present, item]
        )
        operation = begin(call, kind, parent, "put", item["name"])
        shown = _shown_item(call, parent, kind, item["name"], show)
        return call.cloud.operations.created(call, operation, shown, new=old is None)

    def delete(call: Call) -> Answer:
        parent = require_parent(call, outer, for_write=True)
        found = nested_item(parent, kind, call["nested"])
        check_conditions(call, parent if found else None)
        if found is None:
            return Answer(204)
        if parent.hidden.get("operation", {}).get("target") != key(found["id"]):
            _check_idle(call, parent, found["id"])
        check_unused(call.cloud, found)
        return call.cloud.operations.accepted(call, begin(call, kind, parent, "delete", found["name"]))

    service.route("PUT", f"{path}/{{nested}}")(put)
    service.route("DELETE", f"{path}/{{nested}}")(delete)
    _add_effects(service, kind)


def _shown_items(call: Call, parent: Resource, kind: Kind, show: Show) -> list[dict[str, Any]]:
    body = show(call.cloud, parent, uses(call.cloud, parent.id))
    return list(body["properties"][kind.list_name])


def _shown_item(call: Call, parent: Resource, kind: Kind, name: str, show: Show) -> dict[str, Any]:
    for item in _shown_items(call, parent, kind, show):
        if item["name"].lower() == name.lower():
            return item
    raise ArmError(404, "NotFound", f"Resource {parent.id}/{kind.list_name}/{name} not found.", details=[])


def require_parent(call: Call, kind: Kind, *, for_write: bool = False) -> Resource:
    """Return the parent of a nested resource, or raise 404."""
    require_group(call, for_write=for_write)
    if for_write and find_resource(call, kind.full_type) is None:
        raise parent_not_found(call["name"])
    return common.require_resource(call, kind.full_type)


# Operations


def _check_idle(call: Call, resource: Resource | None, target: str) -> None:
    """Raise if another operation runs on the resource or on what is nested in it.

    A second PUT of the same resource supersedes the first, as in Azure.
    """
    running = resource.hidden.get("operation") if resource else None
    state = call.cloud.store.get_operation(running["id"]) if running else None
    if (
        running
        and state
        and state["status"] == IN_PROGRESS
        and (running["target"] != key(target) or running["deletes"])
    ):
        uri = (
            f"{call.base_url}/subscriptions/{call.cloud.subscription}/providers/{NAMESPACE}/locations/"
            f"{state['location']}/operations/{running['id']}?api-version={call.api_version}"
        )
        raise ArmError(
            409,
            "AnotherOperationInProgress",
            "Another operation on this or dependent resource is in progress. To retrieve status of the operation use "
            f"uri: {uri}.",
            details=[],
        )


def begin(call: Call, kind: Kind, resource: Resource, verb: str, nested: str | None = None) -> Operation:
    """Start the operation of a PUT or DELETE and store the resource in its intermediate state."""
    path = f"/{kind.list_name}/{nested}" if nested else ""
    set_state(resource, UPDATING if verb == "put" else DELETING, (kind.list_name, nested) if nested else None)
    operation = call.cloud.operations.begin(
        call,
        resource,
        "write" if verb == "put" else "delete",
        latency=f"{kind.latency}-{verb}",
        payload={"guid": resource.properties["resourceGuid"], "nested": nested},
        retry_after=kind.retry_after if verb == "put" else (10, 10),
        nested=path,
    )
    resource.hidden["operation"] = {
        "id": operation.id,
        "target": key(f"{resource.id}{path}"),
        "name": f"{verb.capitalize()}{kind.title}Operation",
        "deletes": verb == "delete",
    }
    keep(call.cloud, resource)
    return operation


def _add_effects(service: Service, kind: Kind, finish: Callable[[Cloud, Resource], None] | None = None) -> None:
    def end(cloud: Cloud, resource: Resource, payload: dict[str, Any]) -> None:
        nested = payload["nested"]
        state = FAILED if "failure" in payload else SUCCEEDED
        set_state(resource, state, (kind.list_name, nested) if nested else None)
        resource.hidden.pop("operation", None)
        keep(cloud, resource)

    def settle(cloud: Cloud, payload: dict[str, Any]) -> None:
        resource = cloud.store.get(payload["id"])
        if resource is None or resource.hidden.get("operation", {}).get("id") != payload["operation"]:
            raise _superseded(kind, payload["operation"])
        if finish and "failure" not in payload:
            finish(cloud, resource)
        end(cloud, resource, payload)

    def remove(cloud: Cloud, payload: dict[str, Any]) -> None:
        resource = cloud.store.get(payload["id"])
        # A resource created again under the same name is another one.
        if resource is None or resource.properties["resourceGuid"] != payload["guid"]:
            return
        if "failure" in payload:
            end(cloud, resource, payload)
        elif payload["nested"] is None:
            cloud.store.delete(resource.id)
        else:
            name, rest = payload["nested"].lower(), resource.properties[kind.list_name]
            resource.properties[kind.list_name] = [item for item in rest if item["name"].lower() != name]
            resource.hidden.pop("operation", None)
            keep(cloud, resource)

    service.effect(f"{kind.latency}-put")(settle)
    service.effect(f"{kind.latency}-delete")(remove)


def _superseded(kind: Kind, operation: str) -> ArmError:
    message = f"Operation Put{kind.title}Operation ({operation}) was canceled and superseded by another operation."
    details = [{"code": "CanceledAndSupersededDueToAnotherOperation", "message": message}]
    return ArmError(409, "Canceled", "Operation was canceled.", details=details)
