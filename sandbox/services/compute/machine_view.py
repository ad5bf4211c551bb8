"""A machine as it is shown, with what it is doing where that is asked for."""

from __future__ import annotations

import re
from typing import Any

from gpuinfra.sandbox.kernel.clock import stamp
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services.compute.machine_state import DEALLOCATED, power_of

_AGENT = "2.12.0.2"
_DISPLAYED = {
    "Succeeded": "Provisioning succeeded",
    "Failed": "Provisioning failed",
    "Creating": "Creating",
    "Updating": "Updating",
    "Deleting": "Deleting",
}


def show(machine: Resource, view: dict[str, Any] | None = None, *, user_data: bool = False) -> dict[str, Any]:
    """The body of an answer."""
    body = {**machine.body, "etag": etag(machine)}
    if view is not None or (user_data and "userData" in machine.hidden):
        properties = dict(machine.properties)
        if view is not None:
            properties["instanceView"] = view
        if user_data and "userData" in machine.hidden:
            properties["userData"] = machine.hidden["userData"]
        body["properties"] = properties
    return body


def etag(machine: Resource) -> str:
    """A strong one, as machines have."""
    return machine.etag.removeprefix("W/")


def instance_view(cloud: Cloud, machine: Resource) -> dict[str, Any]:
    """What the machine and its guest are doing."""
    properties = machine.properties
    power = power_of(machine)
    view: dict[str, Any] = {}
    if power not in ("", "creating", DEALLOCATED):
        view |= _guest(cloud, machine, is_up=power == "running" and machine.key in cloud.guests_ready)
    status = {
        "code": "ProvisioningState/succeeded",
        "level": "Info",
        "displayStatus": "Provisioning succeeded",
        "time": stamp(machine.created),
    }
    profile = properties.get("storageProfile", {})
    disks = [profile.get("osDisk", {}), *profile.get("dataDisks", [])]
    view["disks"] = [{"name": disk["name"], "statuses": [status]} for disk in disks if "name" in disk]
    view["hyperVGeneration"] = machine.hidden.get("generation", "V1")
    view["statuses"] = [_provisioning(machine)]
    if power not in ("", "creating"):
        view["statuses"].append({"code": f"PowerState/{power}", "level": "Info", "displayStatus": f"VM {power}"})
    return view


def _provisioning(machine: Resource) -> dict[str, Any]:
    state = machine.properties.get("provisioningState", "Succeeded")
    status = {
        "code": f"ProvisioningState/{state.lower()}",
        "level": "Info",
        "displayStatus": _DISPLAYED.get(state, state),
    }
    if failure := machine.hidden.get("failure"):
        status["code"] += f"/{failure['code']}"
        status |= {"level": "Error", "message": failure["message"]}
    status["time"] = stamp(machine.hidden.get("provisionedAt", machine.created))
    return status


def _guest(cloud: Cloud, machine: Resource, *, is_up: bool) -> dict[str, Any]:
    time = stamp(cloud.now)
    if not is_up:
        status = {
            "code": "ProvisioningState/Unavailable",
            "level": "Warning",
            "displayStatus": "Not Ready",
            "message": "VM status blob is found but not yet populated.",
            "time": time,
        }
        return {"vmAgent": {"vmAgentVersion": "Unknown", "statuses": [status]}}
    status = {
        "code": "ProvisioningState/succeeded",
        "level": "Info",
        "displayStatus": "Ready",
        "message": "Guest Agent is running",
        "time": time,
    }
    system, version = _system(machine.properties.get("storageProfile", {}).get("imageReference", {}))
    return {
        "computerName": machine.properties.get("osProfile", {}).get("computerName", machine.name),
        "osName": system,
        "osVersion": version,
        "vmAgent": {"vmAgentVersion": _AGENT, "statuses": [status], "extensionHandlers": []},
    }


def _system(image: dict[str, Any]) -> tuple[str, str]:
    names = f"{image.get('offer', '')} {image.get('sku', '')}".lower()
    found = re.search(r"(\d\d)[._]?(04|10)", names)
    return ("ubuntu", f"{found[1]}.{found[2]}") if found else ("linux", "")
