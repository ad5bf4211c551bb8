"""Management locks: which requests they forbid at their scope and below it. They apply to every caller."""

from gpuinfra.sandbox.kernel.access_control import NAMESPACE, is_within, live, scope_of
from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.store import Resource

KIND = "locks"
CAN_NOT_DELETE, READ_ONLY = "CanNotDelete", "ReadOnly"
LEVELS = (CAN_NOT_DELETE, READ_ONLY)


def locks(cloud: Cloud) -> list[Resource]:
    """Return all locks whose scope still exists."""
    return live(cloud, KIND)


def scope_of_lock(lock: Resource) -> str:
    """Return the scope that a lock protects."""
    return str(lock.hidden["scope"])


def check_locks(call: Call) -> None:
    """Raise ARM's 409 if a lock forbids the call.

    `CanNotDelete` forbids DELETE, `ReadOnly` also PUT, PATCH and POST, such as starting and deallocating a VM. A scope
    inherits the locks above it, and cannot be deleted while something below it is locked.
    """
    found = call.cloud.router.find(call.method, call.path)
    if not isinstance(found, tuple) or call.method in {"GET", "HEAD"}:
        return
    if found[0].action.startswith(f"{NAMESPACE}/{KIND}/"):
        return  # a lock does not protect itself
    scope, deletes = scope_of(call), call.method == "DELETE"
    if blocking := [each for each in locks(call.cloud) if _forbids(each, scope, deletes=deletes)]:
        places = ",".join(sorted({scope_of_lock(each) for each in blocking}, key=len))
        raise ArmError(
            409,
            "ScopeLocked",
            f"The scope '{scope}' cannot perform {'delete' if deletes else 'write'} operation because following "
            f"scope(s) are locked: '{places}'. Please remove the lock and try again.",
        )


def keeps(cloud: Cloud, resource_id: str) -> bool:
    """Return whether a lock keeps a resource when the VM is deleted that it would be deleted with."""
    return any(_forbids(each, resource_id, deletes=True) for each in locks(cloud))


def _forbids(lock: Resource, scope: str, *, deletes: bool) -> bool:
    place = scope_of_lock(lock)
    if deletes:
        return is_within(scope, place) or is_within(place, scope)
    return lock.properties["level"] == READ_ONLY and is_within(scope, place)
