"""A target: a machine that jobs can be sent to. It is all that provisioning hands on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """Where a machine answers SSH, as whom, and by which host key it is known."""

    name: str
    """The compute target's name: that of its two files."""
    machine: str
    type: str
    """`remotedocker` or `remote`."""
    address: str
    port: int
    username: str
    host_key: str
    """The machine's public host key, `ssh-ed25519 AAAA…`; a connection that shows another one is refused."""
    identity: str | None = None
    """The path of the private key; None where only the agent or the user's own keys can do."""
    base_docker_image: str | None = None
    nvidia_docker: bool = True
    framework: str = "Python"
    conda_dependencies: str = "aml_config/conda_dependencies.yml"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "machine": self.machine,
            "type": self.type,
            "address": self.address,
            "port": self.port,
            "username": self.username,
            "hostKey": self.host_key,
        }
