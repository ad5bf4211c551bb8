"""Run Command: a script that Azure's agent runs in the guest."""

import re
import shlex
from typing import Any

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import invalid_content, invalid_parameter
from gpuinfra.sandbox.kernel.long_running_operations import LATER
from gpuinfra.sandbox.kernel.routes import GROUP, Service
from gpuinfra.sandbox.services.common import require_group, require_object, require_resource, section
from gpuinfra.sandbox.services.compute.fields import invalid_value, not_allowed, required
from gpuinfra.sandbox.services.compute.vm_power_state import VIRTUAL_MACHINES, preempted, require_idle, state_of

service = Service()

_SHOWN = 4096
"""How many bytes of each stream Azure shows, from its end."""


@service.route("POST", f"{GROUP}/providers/Microsoft.Compute/virtualMachines/{{name}}/runCommand")
def _run_command(call: Call) -> Answer:
    require_group(call, for_write=True)
    vm = require_resource(call, VIRTUAL_MACHINES)
    script = _script(require_object(call))
    require_idle(vm, "runCommand")
    if state_of(vm) != "running":
        raise not_allowed("Cannot modify extensions in the VM when the VM is not running.")
    operation = call.cloud.operations.begin(
        call, vm, "runCommand", latency="vm-run-command", payload={"vmId": vm.properties["vmId"], "script": script}
    )
    return call.cloud.operations.accepted(call, operation)


def _script(body: dict[str, Any]) -> str:
    command = body.get("commandId")
    if command is None:
        raise required("commandId")
    if not isinstance(command, str) or command.lower() != "runshellscript":
        raise invalid_parameter("commandId", f"The entity name '{command}' is not a command of a Linux machine.")
    lines = section(body, "script", list)
    if not all(isinstance(line, str) for line in lines):
        raise invalid_content("The request content was invalid: 'script' must be a list of texts.")
    if not lines:
        raise required("script")
    return "\n".join([*_parameters(body), *lines])


def _parameters(body: dict[str, Any]) -> list[str]:
    """Return lines that set the parameters as variables of the script, and as its positional arguments in order."""
    assignments, values = [], []
    for parameter in section(body, "parameters", list):
        name, value = (parameter.get("name"), parameter.get("value")) if isinstance(parameter, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(value, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise invalid_value("parameters")
        assignments.append(f"export {name}={shlex.quote(value)}")
        values.append(shlex.quote(value))
    return [*assignments, f"set -- {' '.join(values)}"] if values else []


@service.effect("vm-run-command")
def begin_in_guest(cloud: Cloud, payload: dict[str, Any]) -> str | None:
    """Send the script to the guest; the guest host ends the operation."""
    vm = cloud.store.get(payload["id"])
    if vm is None or vm.properties["vmId"] != payload["vmId"]:
        raise preempted()
    if "failure" in payload:
        return None
    if state_of(vm) != "running":
        raise not_allowed("Cannot modify extensions in the VM when the VM is not running.")
    cloud.guest_orders.append(
        {
            "kind": "run-command",
            "vm": vm.id,
            "vmId": vm.properties["vmId"],
            "operation": payload["operation"],
            "script": payload["script"],
        }
    )
    return LATER


def command_result(stdout: str, stderr: str) -> dict[str, Any]:
    """Return the result of a command. Azure reports success for every exit code of the script."""
    message = f"Enable succeeded: \n[stdout]\n{stdout[-_SHOWN:]}\n[stderr]\n{stderr[-_SHOWN:]}"
    status = {"code": "ProvisioningState/succeeded", "level": "Info", "displayStatus": "Provisioning succeeded"}
    return {"value": [{**status, "message": message}]}
