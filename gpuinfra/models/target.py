"""A target: a machine that jobs can be sent to. It is all that provisioning hands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DEFAULT_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04"
"""What jobs are built on where nobody names an image."""

ASK, KEYRING = "ask", "keyring:"
"""What stands for a password in a file: somebody is asked, or the keyring has it under the name that follows."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a machine answers SSH, as whom, and by which host key it is known."""

    name: str
    """The compute target's name: that of its two files."""
    machine: str
    type: str
    """`local`, `localdocker`, `remotedocker`, `remote` or `cluster`."""
    address: str
    """Empty where jobs run on this computer."""
    port: int
    username: str
    host_key: str
    """The machine's public host key, `ssh-ed25519 AAAA…`; a connection that shows another one is refused."""
    identity: str | None = None
    """The path of the private key; None where only the agent or the user's own keys can do."""
    password: str | None = None
    """Where the password is, `keyring:NAME` or `ask`; never the password itself."""
    base_docker_image: str | None = None
    nvidia_docker: bool = True
    framework: str = "Python"
    conda_dependencies: str = "aml_config/conda_dependencies.yml"
    simulated: bool = False
    """Whether it is a machine of the embedded Azure."""
    said: frozenset[str] = frozenset()
    """The fields that were asked for by name: the target's files follow these. Others, save for how the machine is
    reached, are the user's own once the files are there."""
    resource_id: str = ""
    """The id of its virtual machine, where `up` made it: two machines can have one name."""
    more_identities: tuple[str, ...] = ()
    """Private keys that OpenSSH tries as well."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        found = {
            "name": self.name,
            "machine": self.machine,
            "type": self.type,
            "address": self.address,
            "port": self.port,
            "username": self.username,
            "hostKey": self.host_key,
            "password": self.password,
            "resourceId": self.resource_id or None,
            "simulated": self.simulated or None,
        }
        return {key: value for key, value in found.items() if value is not None}


def unreached_target(name: str, machine: str, host_key: str, *, simulated: bool) -> Target:
    """Return a machine of which only the name and the host key are known yet."""
    return Target(name, machine, type="", address="", port=22, username="", host_key=host_key, simulated=simulated)
