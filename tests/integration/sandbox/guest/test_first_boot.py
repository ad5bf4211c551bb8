"""A machine's first boot: when Azure's agent reports ready, and what Trusted Launch does to NVIDIA's driver."""

from typing import Any

import asyncssh
import pytest
from azure.core.exceptions import HttpResponseError

from tests.integration.sandbox.servers import Sandbox
from tests.integration.sandbox.test_guest_host import Machine

AS_IT_IS = ""
ED25519 = """bootcmd:
  - sed -i 's/^Provisioning.SshHostKeyPairType=.*/Provisioning.SshHostKeyPairType=ed25519/' /etc/waagent.conf
"""


def custom_data(rest: str) -> str:
    """A host key of its own, and no other."""
    key = asyncssh.generate_private_key("ssh-ed25519")
    private = "".join(f"    {line}\n" for line in key.export_private_key().decode().splitlines())
    public = key.export_public_key().decode().strip()
    return f"#cloud-config\nssh_keys:\n  ed25519_private: |\n{private}  ed25519_public: {public}\n{rest}"


@pytest.mark.parametrize(("settings", "status"), [(AS_IT_IS, "Not Ready"), (ED25519, "Ready")])
def test_azure_agent_waits_for_a_host_key_of_its_kind(sandbox: Sandbox, settings: str, status: str) -> None:
    machine = Machine(sandbox, custom_data(settings))
    assert machine.run("echo hello") == (0, "hello\n")
    sandbox.wait_for(sandbox.server.host.finish)
    view: Any = sandbox.compute.virtual_machines.instance_view(machine.place.group, "m")
    assert view.vm_agent.statuses[0].display_status == status
    order: Any = {"commandId": "RunShellScript", "script": ["echo out"]}
    running: Any = sandbox.compute.virtual_machines.begin_run_command(machine.place.group, "m", order)
    if status == "Ready":
        assert "[stdout]\nout\n" in running.result().value[0].message
    else:
        with pytest.raises(HttpResponseError, match="has not reported status for VM agent"):
            running.result()


@pytest.mark.parametrize("given", [None, "Standard"])
def test_default_trusted_launch_prevents_the_driver_from_loading(sandbox: Sandbox, given: str | None) -> None:
    security: dict[str, Any] = {"securityProfile": {"securityType": given}} if given else {}
    machine = Machine(sandbox, faults=("trusted-launch",), **security)
    code, said = machine.run("nvidia-smi")
    if given:
        assert code == 0, said
    else:
        assert code == 9
        assert "couldn't communicate with the NVIDIA driver" in said
    shown: Any = machine.place.machines.get(machine.place.group, "m")
    assert shown.security_profile.security_type == (given or "TrustedLaunch")
