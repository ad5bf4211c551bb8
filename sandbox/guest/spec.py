"""What a guest is made from: plain values that the server chooses."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Gpu:
    """The GPUs of a size as the guest sees them; `memory_mib` is the memory of each device."""

    model: str
    name: str
    count: int
    memory_mib: int
    compute_capability: str
    pci_device_id: str
    driver_version: str
    cuda_version: str


@dataclass(frozen=True)
class GuestSpec:
    """One guest. `root` is its disk: it survives stop and start, and is removed by delete."""

    vm_id: str
    name: str
    root: Path
    address: str
    port: int
    username: str
    authorized_keys: tuple[str, ...]
    custom_data: bytes | None
    gpu: Gpu | None
    metadata_url: str
    environment: Mapping[str, str] = field(default_factory=dict)
    sshd_refuses: bool = False
    gpu_gone: bool = False
    driver_refused: bool = False


@dataclass(frozen=True)
class CommandResult:
    """The result of a command in the guest."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


class GuestNotRunningError(LookupError):
    """The guest is not powered on."""
