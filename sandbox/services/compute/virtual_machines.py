"""Virtual machines: create, change, read and delete."""

from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import invalid_parameter, not_modelled
from gpuinfra.sandbox.kernel.routes import GROUP, SUBSCRIPTION, Service
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services import common
from gpuinfra.sandbox.services.compute import vm_power_state as power
from gpuinfra.sandbox.services.compute.disks import make_disks, name_disks, release_disks, update_disks
from gpuinfra.sandbox.services.compute.fields import check_entity_name
from gpuinfra.sandbox.services.compute.vm_create import new_vm
from gpuinfra.sandbox.services.compute.vm_instance_view import etag, instance_view, show
from gpuinfra.sandbox.services.compute.vm_network_profile import attach_nics, public_ip_of_vm, release_nics
from gpuinfra.sandbox.services.compute.vm_security_profile import boots_securely
from gpuinfra.sandbox.services.compute.vm_update import change_vm

service = Service()

_VM = f"{GROUP}/providers/{power.VIRTUAL_MACHINES}/{{name}}"


# Create and change


@service.route("PUT", _VM)
def _put_vm(call: Call) -> Answer:
    check_entity_name(call["name"], "vmName")
    body, existing, location = common.check_put(call, power.VIRTUAL_MACHINES)
    return _create(call, location, body) if existing is None else _update(call, existing, body)


def _create(call: Call, location: str, body: dict[str, Any]) -> Answer:
    vm, disks = new_vm(call, common.resource_id(call, power.VIRTUAL_MACHINES), location, body)
    power.set_state(call.cloud, vm, "creating")
    attach_nics(call.cloud, vm)
    make_disks(call.cloud, vm, disks)
    operation = power.begin(call, vm, "write", latency="vm-create", effect="machine-create", provisioning="Creating")
    answer = call.cloud.operations.created(call, operation, show(vm), new=True)
    answer.headers["ETag"] = etag(vm)
    return answer


def _update(call: Call, vm: Resource, body: dict[str, Any]) -> Answer:
    power.require_idle(vm, "Update VM")
    change = change_vm(call, vm, body)
    make_disks(call.cloud, vm, change.made)
    # Tags are only Azure's record: nothing happens to the VM.
    only_tags = set(body) == {"tags"} and not vm.hidden.get("neverAllocated")
    latency = "vm-tag" if only_tags else "vm-update"
    operation = power.begin(
        call, vm, "write", latency=latency, effect="machine-update", payload={"resized": change.resized}
    )
    answer = call.cloud.operations.created(call, operation, show(vm), new=False)
    answer.headers["ETag"] = etag(vm)
    return answer


@service.route("PATCH", _VM)
def _patch_vm(call: Call) -> Answer:
    common.require_group(call, for_write=True)
    body = common.require_object(call)
    vm = common.require_resource(call, power.VIRTUAL_MACHINES)
    common.check_conditions(call, vm)
    if body.get("location") is not None:
        common.check_same_location(vm, common.require_location(call, body, power.VIRTUAL_MACHINES))
    return _update(call, vm, body)


@service.effect("machine-create")
def finish_create(cloud: Cloud, payload: dict[str, Any]) -> None:
    """Power the VM on; after a failure its resources still exist."""
    vm = power.claim(cloud, payload)
    name_disks(vm)
    _allocate(cloud, vm, payload.get("failure"))
    power.finish(cloud, vm, payload)


@service.effect("machine-update")
def finish_update(cloud: Cloud, payload: dict[str, Any]) -> None:
    """Apply the change. A VM that was never allocated is allocated now; one with another size restarts."""
    vm = power.claim(cloud, payload)
    name_disks(vm)
    failure = payload.get("failure")
    if vm.hidden.get("neverAllocated"):
        _allocate(cloud, vm, failure)
    elif not failure and payload["resized"]:
        if power.state_of(vm) == "running":
            power.order_guest(cloud, vm, "stop")
            power.turn_on(cloud, vm)
        else:
            power.set_state(cloud, vm, power.state_of(vm))
    power.finish(cloud, vm, payload)


def _allocate(cloud: Cloud, vm: Resource, failure: dict[str, Any] | None) -> None:
    if failure is None:
        power.turn_on(cloud, vm, "provision")
    elif power.is_allocated_after(failure):
        power.set_state(cloud, vm, "running")
        vm.hidden.pop("neverAllocated", None)
    else:
        vm.hidden["neverAllocated"] = True
        power.set_state(cloud, vm, power.DEALLOCATED)
        update_disks(cloud, vm)


# Read


def _expands(call: Call) -> set[str]:
    wanted = {part.strip().lower() for part in call.query.get("$expand", "").split(",")} - {""}
    if wanted - {"instanceview", "userdata"}:
        value = call.query["$expand"]
        raise invalid_parameter("$expand", f"The value '{value}' of the query parameter $expand is invalid.")
    return wanted


@service.get(_VM)
def _get_vm(call: Call) -> Answer:
    vm = common.require_resource(call, power.VIRTUAL_MACHINES)
    wanted = _expands(call)
    view = instance_view(call.cloud, vm) if "instanceview" in wanted else None
    return Answer(200, show(vm, view, user_data="userdata" in wanted), {"ETag": etag(vm)})


@service.route("GET", f"{_VM}/instanceView")
def _get_instance_view(call: Call) -> Answer:
    return Answer(200, instance_view(call.cloud, common.require_resource(call, power.VIRTUAL_MACHINES)))


def _list(call: Call, location: str | None = None) -> Answer:
    if call.query.get("$filter"):
        raise not_modelled("'$filter' of virtual machines")
    status_only = call.query.get("statusonly", "false").lower() == "true"
    with_view = status_only or "instanceview" in _expands(call)

    def shown(vm: Resource) -> dict[str, Any]:
        return show(vm, instance_view(call.cloud, vm) if with_view else None)

    wanted = (lambda vm: vm.location == location) if location else None
    return common.page(call, kind=power.VIRTUAL_MACHINES, show=shown, wanted=wanted)


@service.route("GET", f"{GROUP}/providers/{power.VIRTUAL_MACHINES}")
@service.route("GET", f"{SUBSCRIPTION}/providers/{power.VIRTUAL_MACHINES}")
def _list_vms(call: Call) -> Answer:
    return _list(call)


@service.route("GET", f"{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{{location}}/virtualMachines")
def _list_vms_by_location(call: Call) -> Answer:
    common.require_subscription(call)
    return _list(call, common.require_location(call, {"location": call["location"]}, power.VIRTUAL_MACHINES))


# Delete


@service.route("DELETE", _VM)
def _delete_vm(call: Call) -> Answer:
    vm = common.find_to_delete(call, power.VIRTUAL_MACHINES)
    if vm is None:
        return Answer(204)
    power.preempt(call.cloud, vm)
    operation = power.begin(
        call,
        vm,
        "delete",
        latency="vm-delete",
        effect="machine-delete",
        provisioning="Deleting",
        retry_after=(10, 30),
    )
    return call.cloud.operations.accepted(call, operation)


@service.effect("machine-delete")
def finish_delete(cloud: Cloud, payload: dict[str, Any]) -> None:
    """Delete the VM, unless another deletion already has."""
    vm = cloud.store.get(payload["id"])
    if vm is None or vm.properties["vmId"] != payload["vmId"]:
        return
    if "failure" in payload:
        vm.hidden.pop("busy", None)
        power.finish(cloud, vm, payload)
    else:
        remove_vm(cloud, vm)


def remove_vm(cloud: Cloud, vm: Resource) -> None:
    """Delete the VM at once, with the disks and NICs whose `deleteOption` says so."""
    power.set_state(cloud, vm, "deleted")
    power.order_guest(cloud, vm, "stop")
    release_disks(cloud, vm)
    release_nics(cloud, vm)
    cloud.store.delete(vm.id)


# For the guest host


def guest_facts(cloud: Cloud, vm_id: str) -> dict[str, Any]:
    """Return everything that the guest of a VM is made from. Raises KeyError for an unknown VM."""
    vm = cloud.store.get(vm_id)
    if vm is None:
        raise KeyError(vm_id)
    properties, hidden = vm.properties, vm.hidden
    size = cloud.catalogue.size(properties["hardwareProfile"]["vmSize"])
    return {
        "name": vm.name,
        "vmId": properties["vmId"],
        "username": properties.get("osProfile", {}).get("adminUsername") or hidden.get("username", ""),
        "authorizedKeys": hidden.get("authorizedKeys", []),
        "customData": hidden.get("customData"),
        "publicAddress": public_ip_of_vm(cloud, vm),
        "gpu": size.gpu if size else None,
        "secureBoot": boots_securely(vm),
    }
