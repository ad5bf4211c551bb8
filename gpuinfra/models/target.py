"""A compute target: where jobs run, whether it answers, and whether it can run jobs.

`provision` and `runner` share this type and nothing else.
"""

import ipaddress
import re
from dataclasses import dataclass
from typing import Any, Literal

from gpuinfra.models.gpu import GpuFacts

DEFAULT_IMAGE = "mcr.microsoft.com/azureml/openmpi4.1.0-cuda11.8-cudnn8-ubuntu22.04"
"""The base image of jobs whose target names none."""

ASK, KEYRING = "ask", "keyring:"
"""A reference to a password: ask for it, or read it from the keyring under the name that follows."""
VARIABLE = "${"
"""What begins a variable in the path of a key: OpenSSH expands it, and prints the path if the file is missing."""


@dataclass(frozen=True, slots=True)
class Target:
    """How to reach a machine by SSH, and how jobs run on it."""

    name: str
    """The name of its two files."""
    machine: str
    type: str
    """`local`, `localdocker`, `remotedocker`, `remote` or `cluster`."""
    address: str
    """Empty if jobs run on this computer."""
    port: int
    username: str
    host_key: str
    """The machine's public host key, `ssh-ed25519 AAAA…`; connections with another key are refused."""
    identity: str | None = None
    """The path of the private key; None to use the SSH agent and the user's default keys."""
    password: str | None = None
    """`keyring:NAME` or `ask`; never the password itself."""
    base_docker_image: str | None = None
    nvidia_docker: bool = True
    framework: str = "Python"
    conda_dependencies: str = "aml_config/conda_dependencies.yml"
    simulated: bool = False
    """Whether the machine is in the embedded Azure."""
    explicit_fields: frozenset[str] = frozenset()
    """Fields that spec or command line set. Only these, and the connection, overwrite existing target files."""
    resource_id: str = ""
    """The VM's Azure id if `up` created it: two machines can have the same name."""
    vm_id: str = ""
    """Azure's `vmId` if `up` created the VM: a VM can be deleted and created again with the same Azure id."""
    more_identities: tuple[str, ...] = ()
    """More private keys for OpenSSH to try."""

    @property
    def is_here(self) -> bool:
        """Whether jobs run on this computer. The file of such a target may have an address, which has no effect."""
        return self.type in {"local", "localdocker"}

    def as_json(self) -> dict[str, Any]:
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
    """Return a target of which only name and host key are known."""
    return Target(name, machine, type="", address="", port=22, username="", host_key=host_key, simulated=simulated)


@dataclass(frozen=True, slots=True)
class Reachability:
    """Whether SSH answers at a target, and what is wrong if it does not."""

    state: Literal["yes", "other-key", "no"]
    """`yes` means: with the expected host key, if one is known."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TargetCheck:
    """One requirement of jobs: what was found, and what to do if it is not met."""

    name: str
    """`ssh`, `docker`, `nvidia-runtime`, `gpu` or `python`."""
    passed: bool
    found: str
    help: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "passed": self.passed, "found": self.found, "help": self.help}


@dataclass(frozen=True, slots=True)
class Checkup:
    """Whether a machine can run jobs."""

    checks: tuple[TargetCheck, ...]
    gpu: GpuFacts | None = None

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        checks = [check.as_json() for check in self.checks]
        return {"checks": checks, "gpu": self.gpu.as_json() if self.gpu else None}


# Host names are letters, digits, `-` and `.`. `_` is against the rules, but common.
_HOST = re.compile(r"\w(?:[\w.-]*\w)?\.?", re.ASCII)
_ZONE = re.compile(r"[A-Za-z0-9_.-]+")
_USER = re.compile(r"[^\s\x00-\x20\x7f-][^\s\x00-\x1f\x7f]*")


def is_host(text: str) -> bool:
    """Return whether this is a host name or an address, safe in files and command lines."""
    address, has_zone, zone = text.partition("%")
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        return len(text) < 254 and _HOST.fullmatch(text) is not None
    return not has_zone or (version == 6 and _ZONE.fullmatch(zone) is not None)


def is_user(text: str) -> bool:
    """Return whether this can be a user name: no spaces, not like an option."""
    return _USER.fullmatch(text) is not None
