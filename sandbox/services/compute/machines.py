"""Virtual machines."""

from __future__ import annotations

from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud, Effects
from gpuinfra.sandbox.kernel.errors import invalid_parameter
from gpuinfra.sandbox.kernel.routes import GROUP, SUBSCRIPTION, Routes
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.common import (
    check_conditions,
    page,
    require_group,
    require_location,
    require_object,
    require_resource,
    require_subscription,
    resource_id,
)
from gpuinfra.sandbox.services.compute.machine_body import new_machine
from gpuinfra.sandbox.services.compute.machine_disks import make_disks, name_disks, release_disks, update_disks
from gpuinfra.sandbox.services.compute.machine_errors import check_entity_name, check_same_location, not_modelled
from gpuinfra.sandbox.services.compute.machine_network import address_of, attach_interfaces, release_interfaces
from gpuinfra.sandbox.services.compute.machine_security import boots_securely
from gpuinfra.sandbox.services.compute.machine_state import (
    DEALLOCATED,
    MACHINES,
    begin,
    claim,
    finish,
    is_allocated_after,
    order,
    power_of,
    power_on,
    preempt,
    require_idle,
    set_power,
)
from gpuinfra.sandbox.services.compute.machine_update import change_machine
from gpuinfra.sandbox.services.compute.machine_view import etag, instance_view, show

routes = Routes()
effects = Effects()

_MACHINES = f"{GROUP}/providers/Microsoft.Compute/virtualMachines"
_MACHINE = f"{_MACHINES}/{{name}}"


def machine_id(call: Call) -> str:
    """The id of the call's machine."""
    return resource_id(call, "Microsoft.Compute", ("virtualMachines", call["name"]))


def require_machine(call: Call) -> Resource:
    """The call's machine, or ARM's 404."""
    return require_resource(call, machine_id(call), MACHINES, call["name"])


# Making and changing


@routes.add("PUT", _MACHINE)
def put_machine(call: Call) -> Answer:
    """Make a machine, or change one."""
    require_group(call, for_write=True)
    body = require_object(call)
    check_entity_name(call["name"], "vmName")
    existing = call.cloud.store.get(machine_id(call))
    check_conditions(call, existing)
    location = require_location(call, body, MACHINES)
    if existing is None:
        return _create(call, location, body)
    check_same_location(existing, location)
    return _update(call, existing, body)


def _create(call: Call, location: str, body: dict[str, Any]) -> Answer:
    machine, disks = new_machine(call, machine_id(call), location, body)
    set_power(call.cloud, machine, "creating")
    attach_interfaces(call.cloud, machine)
    make_disks(call.cloud, machine, disks)
    operation = begin(
        call,
        machine,
        "write",
        latency="vm-create",
        effect="machine-create",
        provisioning="Creating",
        retry_after=(10, 10),
    )
    answer = call.cloud.operations.created(call, operation, show(machine), new=True)
    answer.headers["ETag"] = etag(machine)
    return answer


def _update(call: Call, machine: Resource, body: dict[str, Any]) -> Answer:
    require_idle(machine, "Update VM")
    change = change_machine(call, machine, body)
    make_disks(call.cloud, machine, change.made)
    # Tags are Azure's own record of the machine: nothing has to be done to it.
    only_tags = set(body) == {"tags"} and not machine.hidden.get("neverAllocated")
    latency = "vm-tag" if only_tags else "vm-update"
    operation = begin(
        call, machine, "write", latency=latency, effect="machine-update", payload={"resized": change.resized}
    )
    answer = call.cloud.operations.created(call, operation, show(machine), new=False)
    answer.headers["ETag"] = etag(machine)
    return answer


@routes.add("PATCH", _MACHINE)
def patch_machine(call: Call) -> Answer:
    """Change parts of a machine."""
    require_group(call, for_write=True)
    body = require_object(call)
    machine = require_machine(call)
    check_conditions(call, machine)
    if body.get("location") is not None:
        check_same_location(machine, require_location(call, body, MACHINES))
    return _update(call, machine, body)


@effects.add("machine-create")
def finish_create(cloud: Cloud, payload: dict[str, Any]) -> None:
    """The machine runs; or it failed, and its parts are there."""
    machine = claim(cloud, payload)
    name_disks(machine)
    _allocate(cloud, machine, payload.get("failure"))
    finish(cloud, machine, payload)


@effects.add("machine-update")
def finish_update(cloud: Cloud, payload: dict[str, Any]) -> None:
    """The change has taken hold. A machine that never ran is tried anew; one with another size starts again."""
    machine = claim(cloud, payload)
    name_disks(machine)
    failure = payload.get("failure")
    if machine.hidden.get("neverAllocated"):
        _allocate(cloud, machine, failure)
    elif not failure and payload["resized"]:
        if power_of(machine) == "running":
            order(cloud, machine, "stop")
            power_on(cloud, machine)
        else:
            set_power(cloud, machine, power_of(machine))
    finish(cloud, machine, payload)


def _allocate(cloud: Cloud, machine: Resource, failure: dict[str, Any] | None) -> None:
    if failure is None:
        power_on(cloud, machine, "provision")
    elif is_allocated_after(failure):
        set_power(cloud, machine, "running")
        machine.hidden.pop("neverAllocated", None)
    else:
        machine.hidden["neverAllocated"] = True
        set_power(cloud, machine, DEALLOCATED)
        update_disks(cloud, machine)


# Reading


def _expands(call: Call) -> set[str]:
    wanted = {part.strip().lower() for part in call.query.get("$expand", "").split(",")} - {""}
    if wanted - {"instanceview", "userdata"}:
        value = call.query["$expand"]
        raise invalid_parameter("$expand", f"The value '{value}' of the query parameter $expand is invalid.")
    return wanted


@routes.add("GET", _MACHINE)
def get_machine(call: Call) -> Answer:
    """Read a machine."""
    machine = require_machine(call)
    wanted = _expands(call)
    view = instance_view(call.cloud, machine) if "instanceview" in wanted else None
    return Answer(200, show(machine, view, user_data="userdata" in wanted), {"ETag": etag(machine)})


@routes.add("GET", f"{_MACHINE}/instanceView")
def get_instance_view(call: Call) -> Answer:
    """What a machine is doing."""
    return Answer(200, instance_view(call.cloud, require_machine(call)))


def _list(call: Call, *, group: str | None = None, location: str | None = None) -> Answer:
    if call.query.get("$filter"):
        raise not_modelled("'$filter' of virtual machines")
    status_only = call.query.get("statusonly", "false").lower() == "true"
    with_view = status_only or "instanceview" in _expands(call)

    def shown(machine: Resource) -> dict[str, Any]:
        return show(machine, instance_view(call.cloud, machine) if with_view else None)

    wanted = (lambda machine: machine.location == location) if location else None
    return page(call, kind=MACHINES, group=group, show=shown, wanted=wanted)


@routes.add("GET", _MACHINES)
def list_machines(call: Call) -> Answer:
    """Machines of a group."""
    require_group(call)
    return _list(call, group=call["group"])


@routes.add("GET", f"{SUBSCRIPTION}/providers/Microsoft.Compute/virtualMachines")
def list_all_machines(call: Call) -> Answer:
    """Machines of the subscription; with `statusOnly`, what each is doing."""
    require_subscription(call)
    return _list(call)


@routes.add("GET", f"{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{{location}}/virtualMachines")
def list_machines_by_location(call: Call) -> Answer:
    """Machines of a region."""
    require_subscription(call)
    location = require_location(call, {"location": call["location"]}, MACHINES)
    return _list(call, location=location)


# Deleting


@routes.add("DELETE", _MACHINE)
def delete_machine(call: Call) -> Answer:
    """Remove a machine, whatever it is doing."""
    require_group(call)
    machine = call.cloud.store.get(machine_id(call))
    if machine is None:
        return Answer(204)
    check_conditions(call, machine)
    preempt(call.cloud, machine)
    operation = begin(
        call,
        machine,
        "delete",
        latency="vm-delete",
        effect="machine-delete",
        provisioning="Deleting",
        retry_after=(10, 30),
    )
    return call.cloud.operations.accepted(call, operation)


@effects.add("machine-delete")
def finish_delete(cloud: Cloud, payload: dict[str, Any]) -> None:
    """The machine is gone, by this deletion or by another."""
    machine = cloud.store.get(payload["machine"])
    if machine is None or machine.properties["vmId"] != payload["vmId"]:
        return
    if "failure" in payload:
        machine.hidden.pop("busy", None)
        finish(cloud, machine, payload)
    else:
        remove_machine(cloud, machine)


def remove_machine(cloud: Cloud, machine: Resource) -> None:
    """The machine goes at once, and with it what was told to."""
    set_power(cloud, machine, "deleted")
    order(cloud, machine, "stop")
    release_disks(cloud, machine)
    release_interfaces(cloud, machine)
    cloud.store.delete(machine.id)


# For the host of guests


def machine_guest(cloud: Cloud, vm_id: str) -> dict[str, Any]:
    """Everything that a guest is made from. Raises KeyError for a machine that is not there."""
    machine = cloud.store.get(vm_id)
    if machine is None:
        raise KeyError(vm_id)
    properties, hidden = machine.properties, machine.hidden
    return {
        "name": machine.name,
        "vmId": properties["vmId"],
        "size": properties["hardwareProfile"]["vmSize"],
        "username": properties.get("osProfile", {}).get("adminUsername") or hidden.get("username", ""),
        "computerName": properties.get("osProfile", {}).get("computerName") or machine.name,
        "authorizedKeys": hidden.get("authorizedKeys", []),
        "customData": hidden.get("customData"),
        "publicAddress": address_of(cloud, machine),
        "gpu": hidden.get("gpu"),
        "secureBoot": boots_securely(machine),
    }
