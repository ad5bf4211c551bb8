"""Power actions on a VM: start, deallocate, power off, restart, redeploy, and Spot eviction."""

import uuid
from email.utils import formatdate
from functools import partial
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import not_modelled
from gpuinfra.sandbox.kernel.routes import GROUP, Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.activity_log import note_eviction
from gpuinfra.sandbox.services.common import require_group, require_resource
from gpuinfra.sandbox.services.compute import vm_power_state as power
from gpuinfra.sandbox.services.compute.fields import not_allowed
from gpuinfra.sandbox.services.compute.virtual_machines import remove_vm
from gpuinfra.sandbox.services.compute.vm_checks import check_quota, check_size, is_spot, read_spot

service = Service()

_VM = f"{GROUP}/providers/Microsoft.Compute/virtualMachines/{{name}}"
NOTICE_SECONDS = 30
"""How long before its eviction a Spot VM gets notice."""


def _idle_vm(call: Call, action: str) -> Resource:
    require_group(call, for_write=True)
    vm = require_resource(call, power.VIRTUAL_MACHINES)
    power.require_idle(vm, action)
    return vm


@service.route("POST", f"{_VM}/start")
def _start(call: Call) -> Answer:
    vm = _idle_vm(call, "start")
    before = power.state_of(vm)
    if before == power.DEALLOCATED:
        _check_allocation(call, vm)
    if before != "running":
        power.set_state(call.cloud, vm, "starting")
    operation = power.begin(call, vm, "start", latency="vm-start", effect="machine-start", payload={"before": before})
    return call.cloud.operations.accepted(call, operation)


def _check_allocation(call: Call, vm: Resource) -> None:
    """Check size, price and quota, which every start of a deallocated VM needs again."""
    properties, spot = vm.properties, is_spot(vm.properties)
    size = check_size(call.cloud, properties, vm.location)
    read_spot(call.cloud, properties, size, vm.location, "Start VM")
    # A deallocated Spot VM is already counted.
    check_quota(call.cloud, size, vm.location, spot, (size, spot) if spot else None)


@service.effect("machine-start")
def finish_start(cloud: Cloud, payload: dict[str, Any]) -> None:
    """Power the VM on, or return to the state before."""
    vm = power.claim(cloud, payload)
    failure = payload.get("failure")
    if failure is None:
        if payload["before"] != "running":
            power.turn_on(cloud, vm)
    elif payload["before"] != "running":
        power.set_state(cloud, vm, "running" if power.is_allocated_after(failure) else payload["before"])
    power.finish(cloud, vm, payload)


@service.route("POST", f"{_VM}/deallocate")
def deallocate(call: Call) -> Answer:
    """Power off and release the hardware: billing stops."""
    if call.query.get("hibernate", "false").lower() == "true":
        raise not_modelled("hibernation")
    vm = _idle_vm(call, "deallocate")
    before = power.state_of(vm)
    if before != power.DEALLOCATED:
        power.set_state(call.cloud, vm, "deallocating")
    return _turn_off(call, vm, "deallocate", before, power.DEALLOCATED, (10, 30))


@service.route("POST", f"{_VM}/powerOff")
def power_off(call: Call) -> Answer:
    """Power off and keep the hardware: billing continues. A deallocated VM stays deallocated."""
    vm = _idle_vm(call, "powerOff")
    before = power.state_of(vm)
    if before == "running":
        power.set_state(call.cloud, vm, "stopping")
    return _turn_off(call, vm, "powerOff", before, before if before == power.DEALLOCATED else "stopped", (10, 10))


def _turn_off(call: Call, vm: Resource, action: str, before: str, state: str, retry_after: tuple[int, int]) -> Answer:
    latency = "vm-deallocate" if action == "deallocate" else "vm-power-off"
    payload = {"before": before, "state": state}
    operation = power.begin(
        call, vm, action, latency=latency, effect="machine-down", payload=payload, retry_after=retry_after
    )
    return call.cloud.operations.accepted(call, operation)


@service.effect("machine-down")
def finish_down(cloud: Cloud, payload: dict[str, Any]) -> None:
    """Enter the new state, or return to the state before."""
    vm = power.claim(cloud, payload)
    state, before = payload["state"], payload["before"]
    if "failure" in payload:
        if power.state_of(vm) != before:
            power.set_state(cloud, vm, before)
    elif before != state:
        power.turn_off(cloud, vm, state)
    power.finish(cloud, vm, payload)


def _boot_again(call: Call, action: str) -> Answer:
    vm = _idle_vm(call, action)
    if power.state_of(vm) != "running":
        raise not_allowed(
            f"Operation '{action}' is not allowed on VM '{vm.name}' since the VM is not running. Please turn on "
            "the VM in order to process your request."
        )
    operation = power.begin(call, vm, action, latency=f"vm-{action}", effect="machine-boot-again")
    return call.cloud.operations.accepted(call, operation)


service.route("POST", f"{_VM}/restart")(partial(_boot_again, action="restart"))
service.route("POST", f"{_VM}/redeploy")(partial(_boot_again, action="redeploy"))


@service.effect("machine-boot-again")
def finish_boot_again(cloud: Cloud, payload: dict[str, Any]) -> None:
    """Reboot the guest; the VM is billed throughout."""
    vm = power.claim(cloud, payload)
    if "failure" not in payload:
        power.order_guest(cloud, vm, "stop")
        power.order_guest(cloud, vm, "start")
    power.finish(cloud, vm, payload)


@service.route("POST", f"{_VM}/reapply")
def _reapply(call: Call) -> Answer:
    vm = _idle_vm(call, "reapply")
    return call.cloud.operations.accepted(
        call, power.begin(call, vm, "reapply", latency="vm-update", effect="machine-reapply")
    )


@service.effect("machine-reapply")
def _finish_reapply(cloud: Cloud, payload: dict[str, Any]) -> None:
    power.finish(cloud, power.claim(cloud, payload), payload)


# Eviction


@service.route("POST", f"{_VM}/simulateEviction")
def simulate_eviction(call: Call) -> Answer:
    """Evict a Spot VM in 30 seconds and notify its guest."""
    require_group(call, for_write=True)
    vm = require_resource(call, power.VIRTUAL_MACHINES)
    if not is_spot(vm.properties):
        raise not_allowed("Operation 'simulateEviction' is allowed only for Spot Virtual Machines")
    if power.state_of(vm) in ("creating", "deallocating", power.DEALLOCATED):
        raise not_allowed(
            f"Operation 'simulateEviction' is not allowed on VM '{vm.name}' since the VM is not allocated."
        )
    begin_eviction(call.cloud, vm)
    return Answer(204)


def begin_eviction(cloud: Cloud, vm: Resource) -> None:
    """Notify a Spot VM, once, and schedule its eviction."""
    if vm.hidden.get("scheduledEvents"):
        return
    due = cloud.now + NOTICE_SECONDS
    vm.hidden["scheduledEvents"] = [
        {
            "EventId": str(uuid.uuid4()).upper(),
            "EventStatus": "Scheduled",
            "EventType": "Preempt",
            "ResourceType": "VirtualMachine",
            "Resources": [vm.name],
            "NotBefore": formatdate(due, usegmt=True),
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
    ]
    cloud.store.put(vm, cloud.now)
    cloud.schedule(due, "machine-evict", {"id": vm.id, "vmId": vm.properties["vmId"]})


@service.effect("machine-evict")
def evict(cloud: Cloud, payload: dict[str, Any]) -> None:
    """Deallocate or delete the VM, as its eviction policy says."""
    vm = cloud.store.get(payload["id"])
    if vm is None or vm.properties["vmId"] != payload["vmId"]:
        return
    vm.hidden.pop("scheduledEvents", None)
    if power.state_of(vm) == power.DEALLOCATED:
        cloud.store.put(vm, cloud.now)
        return
    power.preempt(cloud, vm)
    deletes = vm.properties.get("evictionPolicy") == "Delete"
    note_eviction(cloud, vm.id, deletes=deletes)
    if deletes:
        remove_vm(cloud, vm)
        return
    power.turn_off(cloud, vm, power.DEALLOCATED)
    power.set_provisioning(cloud, vm, "Succeeded")
    cloud.store.put(vm, cloud.now)
