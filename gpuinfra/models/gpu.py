"""The GPUs that a machine has, as its own driver tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """What `nvidia-smi` says. Where there are several GPUs, each tuple has an entry for each."""

    models: tuple[str, ...]
    driver: str
    memory_mib: tuple[int | None, ...]
    compute_capabilities: tuple[str | None, ...]
    """As `7.5`; None where the driver is too old to tell."""
    simulated: bool = False
    """There is no such GPU: the embedded Azure says that there is."""

    @property
    def summary(self) -> str:
        """`2 Tesla T4, 15360 MiB, driver 535.161.08`."""
        count = f"{len(self.models)} " if len(self.models) > 1 else ""
        memory = f", {self.memory_mib[0]} MiB" if self.memory_mib[0] else ""
        return f"{count}{self.models[0]}{memory}, driver {self.driver}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "count": len(self.models),
            "models": list(self.models),
            "driver": self.driver,
            "memoryMiB": list(self.memory_mib),
            "computeCapabilities": list(self.compute_capabilities),
            "simulated": self.simulated,
        }
