"""Starting, stopping and evicting machines."""

from __future__ import annotations

import uuid
from email.utils import formatdate
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud, Effects
from gpuinfra.sandbox.kernel.routes import GROUP, Routes
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.activity_log import note_eviction
from gpuinfra.sandbox.services.common import require_group
from gpuinfra.sandbox.services.compute.machine_checks import check_quota, check_size, is_spot, read_spot
from gpuinfra.sandbox.services.compute.machine_errors import not_allowed, not_modelled
from gpuinfra.sandbox.services.compute.machine_state import (
    DEALLOCATED,
    begin,
    claim,
    finish,
    is_allocated_after,
    order,
    power_down,
    power_of,
    power_on,
    preempt,
    require_idle,
    set_power,
    set_provisioning,
)
from gpuinfra.sandbox.services.compute.machines import remove_machine, require_machine

routes = Routes()
effects = Effects()

_MACHINE = f"{GROUP}/providers/Microsoft.Compute/virtualMachines/{{name}}"
NOTICE_SECONDS = 30
"""How long before its eviction a spot machine is told."""


def _idle_machine(call: Call, action: str) -> Resource:
    require_group(call, for_write=True)
    machine = require_machine(call)
    require_idle(machine, action)
    return machine


@routes.add("POST", f"{_MACHINE}/start")
def start(call: Call) -> Answer:
    """Allocate the machine, if it is not, and switch it on."""
    machine = _idle_machine(call, "start")
    before = power_of(machine)
    if before == DEALLOCATED:
        _check_allocation(call, machine)
    if before != "running":
        set_power(call.cloud, machine, "starting")
    operation = begin(call, machine, "start", latency="vm-start", effect="machine-start", payload={"before": before})
    return call.cloud.operations.accepted(call, operation)


def _check_allocation(call: Call, machine: Resource) -> None:
    """Capacity is asked for anew with every start."""
    properties, spot = machine.properties, is_spot(machine.properties)
    size = check_size(call.cloud, properties, machine.location)
    read_spot(call.cloud, properties, size, machine.location, "Start VM")
    # A deallocated spot machine is counted already.
    check_quota(call.cloud, size, machine.location, spot, (size, spot) if spot else None)


@effects.add("machine-start")
def finish_start(cloud: Cloud, payload: dict[str, Any]) -> None:
    """It runs, or it is where it was."""
    machine = claim(cloud, payload)
    failure = payload.get("failure")
    if failure is None:
        if payload["before"] != "running":
            power_on(cloud, machine)
    elif payload["before"] != "running":
        set_power(cloud, machine, "running" if is_allocated_after(failure) else payload["before"])
    finish(cloud, machine, payload)


@routes.add("POST", f"{_MACHINE}/deallocate")
def deallocate(call: Call) -> Answer:
    """Switch the machine off and give it back: it costs nothing."""
    if call.query.get("hibernate", "false").lower() == "true":
        raise not_modelled("hibernation")
    machine = _idle_machine(call, "deallocate")
    before = power_of(machine)
    if before != DEALLOCATED:
        set_power(call.cloud, machine, "deallocating")
    operation = begin(
        call,
        machine,
        "deallocate",
        latency="vm-deallocate",
        effect="machine-down",
        payload={"before": before, "state": DEALLOCATED},
        retry_after=(10, 30),
    )
    return call.cloud.operations.accepted(call, operation)


@routes.add("POST", f"{_MACHINE}/powerOff")
def power_off(call: Call) -> Answer:
    """Switch the machine off and keep it: it costs what it did. One that is deallocated stays so."""
    machine = _idle_machine(call, "powerOff")
    before = power_of(machine)
    if before == "running":
        set_power(call.cloud, machine, "stopping")
    operation = begin(
        call,
        machine,
        "powerOff",
        latency="vm-power-off",
        effect="machine-down",
        payload={"before": before, "state": DEALLOCATED if before == DEALLOCATED else "stopped"},
    )
    return call.cloud.operations.accepted(call, operation)


@effects.add("machine-down")
def finish_down(cloud: Cloud, payload: dict[str, Any]) -> None:
    """It is off, or it is where it was."""
    machine = claim(cloud, payload)
    state, before = payload["state"], payload["before"]
    if "failure" in payload:
        if power_of(machine) != before:
            set_power(cloud, machine, before)
    elif before != state:
        power_down(cloud, machine, state)
    finish(cloud, machine, payload)


def _require_running(machine: Resource, action: str) -> None:
    if power_of(machine) != "running":
        raise not_allowed(
            f"Operation '{action}' is not allowed on VM '{machine.name}' since the VM is not running. Please turn on "
            "the VM in order to process your request."
        )


@routes.add("POST", f"{_MACHINE}/restart")
def restart(call: Call) -> Answer:
    """Boot a running machine again, where it is."""
    machine = _idle_machine(call, "restart")
    _require_running(machine, "restart")
    return call.cloud.operations.accepted(
        call, begin(call, machine, "restart", latency="vm-restart", effect="machine-boot-again")
    )


@routes.add("POST", f"{_MACHINE}/redeploy")
def redeploy(call: Call) -> Answer:
    """Boot a running machine again, elsewhere."""
    machine = _idle_machine(call, "redeploy")
    _require_running(machine, "redeploy")
    return call.cloud.operations.accepted(
        call, begin(call, machine, "redeploy", latency="vm-redeploy", effect="machine-boot-again")
    )


@effects.add("machine-boot-again")
def finish_boot_again(cloud: Cloud, payload: dict[str, Any]) -> None:
    """The guest goes off and on; the machine is billed all the time."""
    machine = claim(cloud, payload)
    if "failure" not in payload:
        order(cloud, machine, "stop")
        order(cloud, machine, "start")
    finish(cloud, machine, payload)


@routes.add("POST", f"{_MACHINE}/reapply")
def reapply(call: Call) -> Answer:
    """Let Azure look at the machine's state anew."""
    machine = _idle_machine(call, "reapply")
    return call.cloud.operations.accepted(
        call, begin(call, machine, "reapply", latency="vm-update", effect="machine-reapply")
    )


@effects.add("machine-reapply")
def finish_reapply(cloud: Cloud, payload: dict[str, Any]) -> None:
    """Nothing about it changes but that its state is good again."""
    finish(cloud, claim(cloud, payload), payload)


# Eviction


@routes.add("POST", f"{_MACHINE}/simulateEviction")
def simulate_eviction(call: Call) -> Answer:
    """Evict a spot machine half a minute from now, and let its guest know."""
    require_group(call, for_write=True)
    machine = require_machine(call)
    if not is_spot(machine.properties):
        raise not_allowed("Operation 'simulateEviction' is allowed only for Spot Virtual Machines")
    if power_of(machine) in ("creating", "deallocating", DEALLOCATED):
        raise not_allowed(
            f"Operation 'simulateEviction' is not allowed on VM '{machine.name}' since the VM is not allocated."
        )
    begin_eviction(call.cloud, machine)
    return Answer(204)


def begin_eviction(cloud: Cloud, machine: Resource) -> None:
    """Give notice to a spot machine, once."""
    if machine.hidden.get("scheduledEvents"):
        return
    due = cloud.now + NOTICE_SECONDS
    machine.hidden["scheduledEvents"] = [
        {
            "EventId": str(uuid.uuid4()).upper(),
            "EventStatus": "Scheduled",
            "EventType": "Preempt",
            "ResourceType": "VirtualMachine",
            "Resources": [machine.name],
            "NotBefore": formatdate(due, usegmt=True),
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
        }
    ]
    cloud.store.put(machine, cloud.now)
    cloud.schedule(due, "machine-evict", {"machine": machine.id, "vmId": machine.properties["vmId"]})


@effects.add("machine-evict")
def evict(cloud: Cloud, payload: dict[str, Any]) -> None:
    """The machine is taken away: deallocated, or deleted, as its policy says."""
    machine = cloud.store.get(payload["machine"])
    if machine is None or machine.properties["vmId"] != payload["vmId"]:
        return
    machine.hidden.pop("scheduledEvents", None)
    if power_of(machine) == DEALLOCATED:
        cloud.store.put(machine, cloud.now)
        return
    preempt(cloud, machine)
    deletes = machine.properties.get("evictionPolicy") == "Delete"
    note_eviction(cloud, machine.id, deletes=deletes)
    if deletes:
        remove_machine(cloud, machine)
        return
    power_down(cloud, machine, DEALLOCATED)
    set_provisioning(cloud, machine, "Succeeded")
    cloud.store.put(machine, cloud.now)
