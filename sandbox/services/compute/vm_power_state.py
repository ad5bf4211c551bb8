"""The power state machine of a VM, its provisioning state, and the one operation that it allows at a time."""

from typing import Any

from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.long_running_operations import Operation
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.compute.disks import update_disks
from gpuinfra.sandbox.services.compute.fields import not_allowed
from gpuinfra.sandbox.services.compute.vm_checks import is_spot

VIRTUAL_MACHINES = "Microsoft.Compute/virtualMachines"
DEALLOCATED = "deallocated"
# After these failures the VM is allocated and billed; all others come before the allocation.
_AFTER_ALLOCATION = ("OSProvisioning", "VMExtension", "VMAgent")


def _price_of(cloud: Cloud, vm: Resource) -> float:
    properties = vm.properties
    return cloud.catalogue.price(properties["hardwareProfile"]["vmSize"], vm.location, is_spot(properties)) or 0.0


def state_of(vm: Resource) -> str:
    """Return the power state as in `PowerState/…`; empty before the first."""
    return str(vm.hidden.get("power", ""))


def set_state(cloud: Cloud, vm: Resource, state: str) -> None:
    """Enter a power state, and bill for it from now on. The caller stores the VM."""
    vm.hidden["power"] = state
    cloud.meter.change(vm.key, vm.name, state, _price_of(cloud, vm), cloud.now)


def turn_on(cloud: Cloud, vm: Resource, kind: str = "start") -> None:
    """Enter `running` and boot the guest; `kind` is `start` or `provision`, see `order_guest`."""
    if state_of(vm) != "starting":
        set_state(cloud, vm, "starting")
    set_state(cloud, vm, "running")
    vm.hidden.pop("neverAllocated", None)
    update_disks(cloud, vm)
    order_guest(cloud, vm, kind)


def turn_off(cloud: Cloud, vm: Resource, state: str) -> None:
    """Stop the guest; `state` is `stopped`, which is billed, or `deallocated`."""
    set_state(cloud, vm, state)
    update_disks(cloud, vm)
    order_guest(cloud, vm, "stop")


def order_guest(cloud: Cloud, vm: Resource, kind: str) -> None:
    """Order the guest host to `provision`, `start` or `stop` the guest.

    Azure's create operation ends when the system in the guest is provisioned, so a guest that gets `provision` is up
    at once: the operation's time includes the boot. An operation that starts or restarts a VM ends when the
    hypervisor has started it, and the guest boots after that.
    """
    cloud.guest_orders.append({"kind": kind, "vm": vm.id, "vmId": vm.properties["vmId"]})


def set_provisioning(cloud: Cloud, vm: Resource, state: str, failure: dict[str, Any] | None = None) -> None:
    """Set the provisioning state and, if it failed, why."""
    vm.properties["provisioningState"] = state
    vm.hidden["provisionedAt"] = cloud.now
    vm.hidden.pop("failure", None)
    if failure:
        vm.hidden["failure"] = {name: failure[name] for name in ("code", "message")}


def require_idle(vm: Resource, action: str) -> None:
    """Raise Azure's conflict if an operation runs on the VM, or if the VM is being deleted."""
    if vm.properties.get("provisioningState") == "Deleting":
        raise not_allowed(
            f"Operation '{action}' is not allowed on VM '{vm.name}' since the VM is marked for deletion. You can "
            "only retry the Delete operation (or wait for an ongoing one to complete)."
        )
    if vm.hidden.get("busy"):
        raise ArmError(
            409,
            "Conflict",
            "The request failed due to conflict with a concurrent request. To resolve it, please refer to "
            "https://aka.ms/activitylog to get more details on the conflicting requests.",
        )


def preempted() -> ArmError:
    """Return the error of an operation whose VM was deleted or evicted in the meantime."""
    message = "Operation execution has been preempted by a more recent operation."
    return ArmError(409, "OperationPreempted", message)


def preempt(cloud: Cloud, vm: Resource) -> None:
    """End the running operation, if any."""
    busy = vm.hidden.pop("busy", None)
    if busy:
        cloud.operations.complete(busy, error=preempted().body())


def begin(  # noqa: PLR0913 all of it is needed
    call: Call,
    vm: Resource,
    action: str,
    *,
    latency: str,
    effect: str,
    provisioning: str = "Updating",
    payload: dict[str, Any] | None = None,
    retry_after: tuple[int, int] = (10, 10),
) -> Operation:
    """Start an operation on the VM, and store the VM."""
    cloud = call.cloud
    operation = cloud.operations.begin(
        call,
        vm,
        action,
        latency=latency,
        effect=effect,
        payload={"vmId": vm.properties["vmId"], **(payload or {})},
        retry_after=retry_after,
    )
    vm.hidden["busy"] = operation.id
    set_provisioning(cloud, vm, provisioning)
    cloud.store.put(vm, cloud.now)
    return operation


def claim(cloud: Cloud, payload: dict[str, Any]) -> Resource:
    """Return the VM of an operation that ends, or raise if a newer operation has replaced it."""
    vm = cloud.store.get(payload["id"])
    if vm is None or vm.properties["vmId"] != payload["vmId"] or vm.hidden.get("busy") != payload["operation"]:
        raise preempted()
    del vm.hidden["busy"]
    return vm


def finish(cloud: Cloud, vm: Resource, payload: dict[str, Any]) -> None:
    """Set the provisioning state at the end of an operation, and store the VM."""
    failure = payload.get("failure")
    set_provisioning(cloud, vm, "Failed" if failure else "Succeeded", failure)
    cloud.store.put(vm, cloud.now)


def is_allocated_after(failure: dict[str, Any]) -> bool:
    """Whether the VM is allocated despite this failure."""
    return str(failure["code"]).startswith(_AFTER_ALLOCATION)
