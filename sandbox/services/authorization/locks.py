"""Management locks at a subscription, a resource group or a resource. `kernel/locks.py` enforces them."""

import uuid
from typing import Any

from gpuinfra.sandbox.kernel import access_control, locks
from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_content
from gpuinfra.sandbox.kernel.routes import GROUP, RESOURCE, SUBSCRIPTION, Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import invalid_filter, require_object, scope_id, section

service = Service()

KIND = f"{access_control.NAMESPACE}/{locks.KIND}"
_ALL = f"/providers/{KIND}"
_ONE = f"{_ALL}/{{name}}"
_MAX_NAME, _MAX_NOTES = 260, 512
_NOT_IN_NAMES = frozenset("<>%&:\\?/")


def _put_lock(call: Call) -> Answer:
    """Create a lock, or change its level and notes."""
    scope, name, properties = scope_id(call), call["name"], _checked(call)
    if len(name) > _MAX_NAME or _NOT_IN_NAMES & set(name):
        raise invalid_content(f"The request content was invalid: '{name}' is not a valid name of a lock.")
    existing = _find(call, scope)
    own = access_control.stored_id(call.cloud, locks.KIND, str(uuid.uuid4()))
    lock = existing or Resource(
        own, "", {}, {"scope": scope, "scopeCreated": access_control.scope_created(call.cloud, scope)}
    )
    lock.body = {"properties": properties, "id": f"{scope}{_ALL}/{name}", "type": KIND, "name": name}
    call.cloud.store.put(lock, call.cloud.now)
    return Answer(200 if existing else 201, lock.body)


def _get_lock(call: Call) -> Answer:
    found = _find(call, scope_id(call))
    if found is None:
        raise ArmError(404, "LockNotFound", f"The lock '{call['name']}' could not be found.")
    return Answer(200, found.body)


def _delete_lock(call: Call) -> Answer:
    found = _find(call, scope_id(call))
    if found is None:
        return Answer(204)
    call.cloud.store.delete(found.id)
    return Answer(200)


def _list_locks(call: Call) -> Answer:
    """List the locks at a scope, above it and, without `atScope()`, below it."""
    scope, wanted = scope_id(call), call.query.get("$filter", "").strip().lower()
    if wanted not in {"", "atscope()"}:
        raise invalid_filter(wanted)
    shown = [
        each.body
        for each in locks.locks(call.cloud)
        if access_control.is_within(scope, place := locks.scope_of_lock(each))
        or (not wanted and access_control.is_within(place, scope))
    ]
    return Answer(200, {"value": shown})


def _find(call: Call, scope: str) -> Resource | None:
    wanted = f"{scope}{_ALL}/{call['name']}".lower()
    return next((each for each in locks.locks(call.cloud) if str(each.body["id"]).lower() == wanted), None)


def _checked(call: Call) -> dict[str, Any]:
    properties = section(require_object(call), "properties")
    level = str(properties.get("level"))
    if level not in locks.LEVELS:
        message = f"The request content was invalid: '{level}' is not a level: use {' or '.join(locks.LEVELS)}."
        raise invalid_content(message)
    notes = properties.get("notes")
    if notes is None:
        return {"level": level}
    if not isinstance(notes, str) or len(notes) > _MAX_NOTES:
        message = f"The request content was invalid: 'notes' must be a text of up to {_MAX_NOTES} characters."
        raise invalid_content(message)
    return {"level": level, "notes": notes}


for _path in (SUBSCRIPTION, GROUP, RESOURCE):
    service.route("PUT", f"{_path}{_ONE}")(_put_lock)
    service.route("GET", f"{_path}{_ONE}")(_get_lock)
    service.route("DELETE", f"{_path}{_ONE}")(_delete_lock)
    service.route("GET", f"{_path}{_ALL}")(_list_locks)
