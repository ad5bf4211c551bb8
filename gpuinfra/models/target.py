"""A compute target: where jobs run, its GPUs, whether it answers, and whether it can run jobs.

`provision` and `runner` share this type and nothing else.
"""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, TypeVar

from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Plan
from gpuinfra.models.run import Run

MIB_PER_GIB = 1024
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What `nvidia-smi` reports. Each tuple has one entry per GPU; an empty tuple means: not queried."""

    models: tuple[str, ...]
    driver: str
    memory_mib: tuple[int | None, ...]
    compute_capabilities: tuple[str | None, ...]
    """Such as `7.5`; None if the driver is too old to report it."""
    simulated: bool = False
    """Whether the embedded Azure simulates the GPU."""
    cuda: str | None = None
    """The newest CUDA version that the driver supports, such as `12.2`."""
    uuids: tuple[str | None, ...] = ()
    bus_ids: tuple[str | None, ...] = ()
    """PCI bus ids, such as `00000001:00:00.0`."""
    memory_free_mib: tuple[int | None, ...] = ()
    clocks_mhz: tuple[int | None, ...] = ()
    """Current clock rates."""
    max_clocks_mhz: tuple[int | None, ...] = ()
    cuda_visible_devices: str | None = None
    """CUDA_VISIBLE_DEVICES of the shell that ran `nvidia-smi`; None if unset."""

    @property
    def summary(self) -> str:
        """`2 Tesla T4, 15360 MiB, driver 535.161.08`."""
        count = f"{len(self.models)} " if len(self.models) > 1 else ""
        memory = f", {self.memory_mib[0]} MiB" if self.memory_mib[0] else ""
        return f"{count}{self.models[0]}{memory}, driver {self.driver}"

    @property
    def details(self) -> tuple[str, ...]:
        """One line per GPU: `Tesla T4, compute capability 7.5, 1.59 GHz, pciBusID 0001:00:00.0, memory 15.0 GiB, …`."""
        return tuple(self._detail(index) for index in range(len(self.models)))

    def _detail(self, index: int) -> str:
        capability, clock = _at(self.compute_capabilities, index), _at(self.max_clocks_mhz, index)
        bus, total, free = (_at(each, index) for each in (self.bus_ids, self.memory_mib, self.memory_free_mib))
        found = (
            self.models[index],
            capability and f"compute capability {capability}",
            clock and f"{clock / 1000:.4g} GHz",
            bus and f"pciBusID {_short(str(bus))}",
            total and f"memory {_gibibytes(total)}",
            free is not None and f"free {_gibibytes(free)}",
        )
        return ", ".join(part for part in found if part)

    def as_json(self) -> dict[str, Any]:
        """Return this as a JSON object. Fields that were not queried are omitted."""
        more = {
            "cuda": self.cuda,
            "uuids": list(self.uuids),
            "busIds": list(self.bus_ids),
            "memoryFreeMiB": list(self.memory_free_mib),
            "clocksMHz": list(self.clocks_mhz),
            "maxClocksMHz": list(self.max_clocks_mhz),
        }
        return {
            "count": len(self.models),
            "models": list(self.models),
            "driver": self.driver,
            "memoryMiB": list(self.memory_mib),
            "computeCapabilities": list(self.compute_capabilities),
            "simulated": self.simulated,
            **{name: value for name, value in more.items() if value},
        }


def _at(values: Sequence[T], index: int) -> T | None:
    return values[index] if index < len(values) else None


def _gibibytes(mebibytes: Any) -> str:
    return f"{mebibytes / MIB_PER_GIB:.1f} GiB"


def _short(bus_id: str) -> str:
    """Return the bus id as frameworks print it: with a four-digit PCI domain if possible."""
    return bus_id[4:] if bus_id.startswith("0000") and bus_id.find(":") == 8 else bus_id


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
    """None to choose it for the machine's driver."""
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
    python: str | None = None
    """The path of the machine's Python for jobs without a container; None for the one in the PATH."""
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


@dataclass(frozen=True, slots=True)
class UpResult:
    """A machine that now matches its spec."""

    plan: Plan
    """The applied changes."""
    target: Target | None
    """None if the spec keeps the machine off."""
    gpu: GpuFacts | None
    files: tuple[str, ...]
    """The target files that were written."""
    lease_until: datetime | None
    agent: str | None = None
    """Whether the guest agent can deallocate the machine: `armed`, `not-armed` or `unknown`; None if it is off."""
    simulated: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.plan.name,
            "changed": not self.plan.is_empty,
            "plan": self.plan.as_json(),
            "target": self.target.as_json() if self.target else None,
            "gpu": self.gpu.as_json() if self.gpu else None,
            "files": list(self.files),
            "leaseUntil": stamp(self.lease_until),
            "agent": self.agent,
            "simulated": self.simulated,
        }


@dataclass(frozen=True, slots=True)
class AttachResult:
    """A machine that is now a target of the workspace."""

    target: Target
    fingerprint: str
    """The fingerprint of the host key, as `ssh-keygen -l` prints it."""
    checkup: Checkup
    files: tuple[str, ...]
    """The files that were written; empty if they were up to date."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.target.name,
            "files": list(self.files),
            "fingerprint": self.fingerprint,
            **self.checkup.as_json(),
            "target": self.target.as_json(),
        }


@dataclass(frozen=True)
class DetachResult:
    """A removed target."""

    name: str
    files: tuple[str, ...]
    """The files that were removed."""
    has_machine: bool
    keeps_password: bool = False
    """Whether its password is still in the keyring."""
    runs: tuple[Run, ...] = ()
    """Runs that are no longer reachable."""


def unreachable_runs(runs: Sequence[Run]) -> str:
    """Return a sentence that lists runs which need the removed target."""
    words = (f"{run.id} ({run.state.value}{', outputs not fetched' if run.is_unfetched else ''})" for run in runs)
    return f"runs that are not reachable without the target: {', '.join(words)}"
