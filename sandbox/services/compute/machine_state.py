"""What a machine is doing: its power, its provisioning, and the one operation at a time."""

from __future__ import annotations

from typing import Any

from gpuinfra.sandbox.kernel.call import Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.kernel.operations import Operation
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.compute.machine_checks import is_spot
from gpuinfra.sandbox.services.compute.machine_disks import update_disks
from gpuinfra.sandbox.services.compute.machine_errors import not_allowed

MACHINES = "Microsoft.Compute/virtualMachines"
DEALLOCATED = "deallocated"
# A machine whose system did not come up in time is there, and is billed; other failures are before that.
_AFTER_ALLOCATION = ("OSProvisioning", "VMExtension", "VMAgent")


def price_of(cloud: Cloud, machine: Resource) -> float:
    """What an hour costs."""
    properties = machine.properties
    return cloud.catalogue.price(properties["hardwareProfile"]["vmSize"], machine.location, is_spot(properties)) or 0.0


def power_of(machine: Resource) -> str:
    """The power state."""
    return str(machine.hidden.get("power", ""))


def set_power(cloud: Cloud, machine: Resource, state: str) -> None:
    """From now on the machine is in another state, for the bill as well. The caller keeps the machine."""
    machine.hidden["power"] = state
    cloud.meter.change(machine.key, machine.name, state, price_of(cloud, machine), cloud.now)


def power_on(cloud: Cloud, machine: Resource, kind: str = "start") -> None:
    """It is allocated and runs, and its guest boots; `kind` is how, in the words of `order`."""
    if power_of(machine) != "starting":
        set_power(cloud, machine, "starting")
    set_power(cloud, machine, "running")
    machine.hidden.pop("neverAllocated", None)
    update_disks(cloud, machine)
    order(cloud, machine, kind)


def power_down(cloud: Cloud, machine: Resource, state: str) -> None:
    """Its guest ends; `state` is stopped, which is billed, or deallocated."""
    set_power(cloud, machine, state)
    update_disks(cloud, machine)
    order(cloud, machine, "stop")


def order(cloud: Cloud, machine: Resource, kind: str) -> None:
    """Tell the host of the guests: `provision`, `start` or `stop`.

    Azure's create operation ends only when the system in the guest was provisioned, so what it orders, `provision`, is
    up at once: the time of the boot is in that of the operation. An operation that starts or restarts a machine ends
    when the hypervisor has started it, and the guest boots after that.
    """
    cloud.guest_orders.append({"kind": kind, "vm": machine.id, "vmId": machine.properties["vmId"]})


def set_provisioning(cloud: Cloud, machine: Resource, state: str, failure: dict[str, Any] | None = None) -> None:
    """How the last operation is, or ended."""
    machine.properties["provisioningState"] = state
    machine.hidden["provisionedAt"] = cloud.now
    machine.hidden.pop("failure", None)
    if failure:
        machine.hidden["failure"] = {name: failure[name] for name in ("code", "message")}


def require_idle(machine: Resource, action: str) -> None:
    """One operation at a time; and none but another deletion on what is being deleted."""
    if machine.properties.get("provisioningState") == "Deleting":
        raise not_allowed(
            f"Operation '{action}' is not allowed on VM '{machine.name}' since the VM is marked for deletion. You can "
            "only retry the Delete operation (or wait for an ongoing one to complete)."
        )
    if machine.hidden.get("busy"):
        raise ArmError(
            409,
            "Conflict",
            "The request failed due to conflict with a concurrent request. To resolve it, please refer to "
            "https://aka.ms/activitylog to get more details on the conflicting requests.",
        )


def preempted() -> ArmError:
    """How an operation ends when the machine is deleted or evicted meanwhile."""
    message = "Operation execution has been preempted by a more recent operation."
    return ArmError(409, "OperationPreempted", message)


def preempt(cloud: Cloud, machine: Resource) -> None:
    """End the operation that goes on, if there is one."""
    busy = machine.hidden.pop("busy", None)
    if busy:
        cloud.operations.complete(busy, error=preempted().body())


def begin(  # noqa: PLR0913 all of it is needed
    call: Call,
    machine: Resource,
    action: str,
    *,
    latency: str,
    effect: str,
    provisioning: str = "Updating",
    payload: dict[str, Any] | None = None,
    retry_after: tuple[int, int] = (10, 10),
) -> Operation:
    """Start an operation on the machine, and keep the machine."""
    cloud = call.cloud
    operation = cloud.operations.begin(
        call,
        provider="Microsoft.Compute",
        location=machine.location,
        resource_id=machine.id,
        action=f"virtualMachines/{action}",
        latency=latency,
        effect=effect,
        payload={"machine": machine.id, "vmId": machine.properties["vmId"], **(payload or {})},
        retry_after=retry_after,
    )
    machine.hidden["busy"] = operation.id
    set_provisioning(cloud, machine, provisioning)
    cloud.store.put(machine, cloud.now)
    return operation


def claim(cloud: Cloud, payload: dict[str, Any]) -> Resource:
    """The machine that an operation is about, at its end."""
    machine = cloud.store.get(payload["machine"])
    if (
        machine is None
        or machine.properties["vmId"] != payload["vmId"]
        or machine.hidden.get("busy") != payload["operation"]
    ):
        raise preempted()
    del machine.hidden["busy"]
    return machine


def finish(cloud: Cloud, machine: Resource, payload: dict[str, Any]) -> None:
    """The operation is over, well or not."""
    failure = payload.get("failure")
    set_provisioning(cloud, machine, "Failed" if failure else "Succeeded", failure)
    cloud.store.put(machine, cloud.now)


def is_allocated_after(failure: dict[str, Any]) -> bool:
    """Whether a failure comes after the machine was allocated."""
    return str(failure["code"]).startswith(_AFTER_ALLOCATION)
