"""A VM as ARM shows it, with its instance view on request."""

import re
from typing import Any

from gpuinfra.sandbox.kernel.clock import stamp
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.compute.vm_power_state import DEALLOCATED, state_of

_AGENT = "2.12.0.2"
_DISPLAYED = {
    "Succeeded": "Provisioning succeeded",
    "Failed": "Provisioning failed",
    "Creating": "Creating",
    "Updating": "Updating",
    "Deleting": "Deleting",
}


def show(vm: Resource, view: dict[str, Any] | None = None, *, user_data: bool = False) -> dict[str, Any]:
    """Return the body of an answer."""
    body = {**vm.body, "etag": etag(vm)}
    if view is not None or (user_data and "userData" in vm.hidden):
        properties = dict(vm.properties)
        if view is not None:
            properties["instanceView"] = view
        if user_data and "userData" in vm.hidden:
            properties["userData"] = vm.hidden["userData"]
        body["properties"] = properties
    return body


def etag(vm: Resource) -> str:
    """Return the VM's ETag; for VMs it is a strong one."""
    return vm.etag.removeprefix("W/")


def instance_view(cloud: Cloud, vm: Resource) -> dict[str, Any]:
    """Return the power state, provisioning state and guest agent status."""
    properties = vm.properties
    power = state_of(vm)
    view: dict[str, Any] = {}
    if power not in ("", "creating", DEALLOCATED):
        view |= _guest(cloud, vm, is_up=power == "running" and vm.key in cloud.guests_ready)
    status = _status("ProvisioningState/succeeded", "Provisioning succeeded", time=stamp(vm.created))
    profile = properties.get("storageProfile", {})
    disks = [profile.get("osDisk", {}), *profile.get("dataDisks", [])]
    view["disks"] = [{"name": disk["name"], "statuses": [status]} for disk in disks if "name" in disk]
    view["hyperVGeneration"] = vm.hidden.get("generation", "V1")
    view["statuses"] = [_provisioning(vm)]
    if power not in ("", "creating"):
        view["statuses"].append(_status(f"PowerState/{power}", f"VM {power}"))
    return view


def _status(code: str, displayed: str, level: str = "Info", **more: str) -> dict[str, str]:
    return {"code": code, "level": level, "displayStatus": displayed, **more}


def _provisioning(vm: Resource) -> dict[str, Any]:
    state = vm.properties.get("provisioningState", "Succeeded")
    status = _status(f"ProvisioningState/{state.lower()}", _DISPLAYED.get(state, state))
    if failure := vm.hidden.get("failure"):
        status["code"] += f"/{failure['code']}"
        status |= {"level": "Error", "message": failure["message"]}
    status["time"] = stamp(vm.hidden.get("provisionedAt", vm.created))
    return status


def _guest(cloud: Cloud, vm: Resource, *, is_up: bool) -> dict[str, Any]:
    time = stamp(cloud.now)
    if not is_up:
        message = "VM status blob is found but not yet populated."
        status = _status("ProvisioningState/Unavailable", "Not Ready", "Warning", message=message, time=time)
        return {"vmAgent": {"vmAgentVersion": "Unknown", "statuses": [status]}}
    status = _status("ProvisioningState/succeeded", "Ready", message="Guest Agent is running", time=time)
    system, version = _system(vm.properties.get("storageProfile", {}).get("imageReference", {}))
    return {
        "computerName": vm.properties.get("osProfile", {}).get("computerName", vm.name),
        "osName": system,
        "osVersion": version,
        "vmAgent": {"vmAgentVersion": _AGENT, "statuses": [status], "extensionHandlers": []},
    }


def _system(image: dict[str, Any]) -> tuple[str, str]:
    names = f"{image.get('offer', '')} {image.get('sku', '')}".lower()
    found = re.search(r"(\d\d)[._]?(04|10)", names)
    return ("ubuntu", f"{found[1]}.{found[2]}") if found else ("linux", "")
