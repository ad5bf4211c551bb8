"""How a resource group is deleted: VMs first, then what they used, then the rest; or not at all."""

import uuid
from typing import Any

from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.internal_calls import call_inside, pause
from gpuinfra.sandbox.kernel.long_running_operations import IN_PROGRESS, LATER
from gpuinfra.sandbox.kernel.resource_id import parse_id
from gpuinfra.sandbox.kernel.store import Resource

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
