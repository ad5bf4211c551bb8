"""Resource groups: created and changed at once, deleted with everything in them."""

import re
import uuid
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_content
from gpuinfra.sandbox.kernel.internal_calls import call_inside, pause
from gpuinfra.sandbox.kernel.long_running_operations import IN_PROGRESS, LATER
from gpuinfra.sandbox.kernel.routes import GROUP, SUBSCRIPTION, Service, parse_id
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services import common
from gpuinfra.sandbox.services.operations import answer_result, job_url

ATTEMPTS = 3
MAX_SECONDS = 4 * 3600
"""How long Azure waits for deletions that do not end."""
# Users before what they use. Types that are not listed come last.
_ORDER = {
    "microsoft.devtestlab/schedules": 0,
    "microsoft.compute/virtualmachines": 0,
    "microsoft.network/networkinterfaces": 1,
    "microsoft.compute/disks": 1,
}
_LAST = 2


def begin_deletion(call: Call, group: Resource) -> str:
    """Start the deletion, unless one runs already. Returns the operation's id."""
    cloud = call.cloud
    if group.properties.get("provisioningState") == "Deleting":
        return str(group.hidden["deletion"])
    operation = cloud.operations.begin(call, group, "delete", latency="group-delete", retry_after=(15, 15))
    group.properties["provisioningState"] = "Deleting"
    group.hidden["deletion"] = operation.id
    cloud.store.put(group, cloud.now)
    payload = {"id": group.id, "operation": operation.id, "began": cloud.now}
    cloud.schedule(cloud.now, "group-delete-step", {**payload, "waiting": {}, "attempts": {}, "errors": {}})
    return operation.id


def delete_step(cloud: Cloud, payload: dict[str, Any]) -> None:
    """Delete what can be deleted now, and schedule the next step. `waiting` holds running operations by resource."""
    group = _group(cloud, payload)
    if group is None:
        return
    before = len(payload["waiting"])
    waiting = payload["waiting"] = _still_running(cloud, payload)
    progress = len(waiting) < before
    for resource in _next(cloud, group, payload):
        if payload["attempts"].get(resource.key, 0) >= ATTEMPTS:
            _fail(cloud, group, payload, resource.id)
            return
        payload["attempts"][resource.key] = payload["attempts"].get(resource.key, 0) + 1
        try:
            answer = call_inside(cloud, "DELETE", resource.id)
        except ArmError as error:
            payload["errors"][resource.id] = error.body()
            continue
        progress = True
        if answer.operation_id:
            waiting[resource.id] = answer.operation_id
    if not waiting and not _top_level(cloud, group):
        _emptied(cloud, group, payload["operation"])
    elif cloud.now - payload["began"] > MAX_SECONDS:
        _fail(cloud, group, payload, next(iter(waiting), group.id))
    else:
        due = cloud.now + pause(cloud.now - payload["began"], progress=progress)
        cloud.schedule(due, "group-delete-step", payload)


def _still_running(cloud: Cloud, payload: dict[str, Any]) -> dict[str, str]:
    left: dict[str, str] = {}
    for resource_id, operation_id in payload["waiting"].items():
        operation = cloud.store.get_operation(operation_id) or {}
        if operation.get("status") == IN_PROGRESS:
            left[resource_id] = operation_id
        elif "error" in operation:
            payload["errors"][resource_id] = operation["error"]
    return left


def _emptied(cloud: Cloud, group: Resource, operation_id: str) -> None:
    if group.hidden.get("timeIsOver"):
        cloud.store.delete(group.id)
        cloud.operations.complete(operation_id)
    else:
        group.hidden["isEmpty"] = True
        cloud.store.put(group, cloud.now)


def end_deletion(cloud: Cloud, payload: dict[str, Any]) -> Any:
    """Delete the resource group if it is empty by now; otherwise its last step ends the deletion."""
    group = _group(cloud, payload)
    if group is None:
        return None
    if "failure" in payload:
        _roll_back(cloud, group)
        return None
    if group.hidden.get("isEmpty"):
        cloud.store.delete(group.id)
        return None
    group.hidden["timeIsOver"] = True
    cloud.store.put(group, cloud.now)
    return LATER


def _group(cloud: Cloud, payload: dict[str, Any]) -> Resource | None:
    group = cloud.store.get(payload["id"])
    return group if group and group.hidden.get("deletion") == payload["operation"] else None


def _top_level(cloud: Cloud, group: Resource) -> list[Resource]:
    """Return the resources to delete one by one: nested resources and deployments go with others."""
    found = ((resource, parse_id(resource.id)) for resource in cloud.store.resources(group=group.name))
    return [each for each, own in found if len(own.pairs) == 1 and own.namespace.lower() != "microsoft.resources"]


def _next(cloud: Cloud, group: Resource, payload: dict[str, Any]) -> list[Resource]:
    """Return what to delete now: of the earliest type left, all that is not being deleted yet.

    What could not be deleted is retried only when no deletion runs: one of those may have used it.
    """
    left = _top_level(cloud, group)
    first = min((_rank(resource) for resource in left), default=_LAST)
    waiting, attempts = payload["waiting"], payload["attempts"]
    return [
        resource
        for resource in left
        if _rank(resource) == first and resource.id not in waiting and (resource.key not in attempts or not waiting)
    ]


def _rank(resource: Resource) -> int:
    return _ORDER.get(resource.type.lower(), _LAST)


def _fail(cloud: Cloud, group: Resource, payload: dict[str, Any], blocked: str) -> None:
    reason = payload["errors"].get(blocked) or {"code": "Conflict", "message": "The resource could not be deleted."}
    parsed = parse_id(blocked)
    error = ArmError(
        409,
        "ResourceGroupDeletionBlocked",
        f"Deletion of resource group '{group.name}' failed as resources with identifiers "
        f"'{parsed.type}/{parsed.name}' could not be deleted. The provisioning state of the resource group will be "
        f"rolled back. The tracking Id is '{uuid.uuid4()}'. Please check audit logs for more details.",
        details=[{**reason, "target": blocked}],
    )
    _roll_back(cloud, group)
    cloud.operations.complete(payload["operation"], error=error.body())


def _roll_back(cloud: Cloud, group: Resource) -> None:
    group.properties["provisioningState"] = "Succeeded"
    group.hidden = {}
    cloud.store.put(group, cloud.now)


service = Service()
KIND = "Microsoft.Resources/resourceGroups"
_FILTERS = {"tagname", "tagvalue"}


@service.route("PUT", GROUP)
def _put_group(call: Call) -> Answer:
    common.require_subscription(call)
    _check_name(call["group"])
    body = common.require_object(call)
    location = common.require_location(call, body, KIND)
    existing = call.cloud.store.get(common.group_id(call))
    if existing:
        common.require_group(call, for_write=True)
        common.check_same_location(existing, location)
    group = existing or Resource(common.group_id(call), location, {})
    group.body = {"id": group.id, "name": group.name, "type": KIND, "location": location}
    if (managed_by := _managed_by(body)) is not None:
        group.body["managedBy"] = managed_by
    common.set_tags(group, body)
    group.body["properties"] = {"provisioningState": "Succeeded"}
    call.cloud.store.put(group, call.cloud.now)
    return Answer(200 if existing else 201, group.body)


@service.get(GROUP)
def _get_group(call: Call) -> Answer:
    return Answer(200, common.require_group(call).body)


@service.route("PATCH", GROUP)
def patch_group(call: Call) -> Answer:
    """Change tags or `managedBy`; fields that the body omits stay."""
    group = common.require_group(call, for_write=True)
    body = common.require_object(call)
    if body.get("location") is not None:
        common.check_same_location(group, common.require_location(call, body, KIND))
    common.set_tags(group, body)
    if (managed_by := _managed_by(body)) is not None:
        group.body["managedBy"] = managed_by
    call.cloud.store.put(group, call.cloud.now)
    return Answer(200, group.body)


@service.route("GET", f"{SUBSCRIPTION}/resourceGroups", action="Microsoft.Resources/subscriptions/resourceGroups/read")
def _list_groups(call: Call) -> Answer:
    wanted = common.parse_filter(call.query.get("$filter", ""), _FILTERS)
    return common.page(call, kind="", wanted=lambda group: common.has_tag(group.body, wanted))


@service.route("DELETE", GROUP)
def delete_group(call: Call) -> Answer:
    """Delete a group and everything in it: 202, with a `Location` that answers 200 when it is gone."""
    group = common.require_group(call)
    operation_id = begin_deletion(call, group)
    headers = {
        "Location": job_url(call, "RESOURCEGROUPDELETIONJOB", group.name, operation_id, group.location),
        **call.cloud.operations.retry_headers(15),
    }
    return Answer(202, None, headers, operation_id)


@service.route("GET", f"{SUBSCRIPTION}/operationresults/{{id}}")
def _get_result(call: Call) -> Answer:
    common.require_subscription(call)
    return answer_result(call, call["id"])


service.effect("group-delete-step")(delete_step)
# When the shortest time that a deletion takes is over.
service.effect("group-delete")(end_deletion)


def _check_name(name: str) -> None:
    if len(name) > 90:
        message = f"The provided resource group name '{name}' exceeds the maximum length of '90' characters."
        raise ArmError(400, "InvalidResourceGroup", message)
    if not re.fullmatch(r"[\w().-]*[\w()-]", name):
        message = f"The provided resource group name '{name}' has these invalid characters or ends with '.'."
        raise ArmError(400, "InvalidResourceGroup", message)


def _managed_by(body: dict[str, Any]) -> str | None:
    managed_by = body.get("managedBy")
    if managed_by is not None and not isinstance(managed_by, str):
        raise invalid_content("The request content was invalid: 'managedBy' must be a text.")
    common.section(body, "properties")
    return managed_by
