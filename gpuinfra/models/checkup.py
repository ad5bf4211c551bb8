"""What was found when a machine was looked at: whether it can run jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuinfra.models.gpu import GpuFacts


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that a job needs: what was found, and what to do where it does not do."""

    name: str
    """`ssh`, `docker`, `nvidia-runtime`, `gpu` or `python`."""
    passed: bool
    found: str
    help: str | None = None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"name": self.name, "passed": self.passed, "found": self.found, "help": self.help}


@dataclass(frozen=True, slots=True)
class Checkup:
    """All that was looked at."""

    checks: tuple[Check, ...]
    gpu: GpuFacts | None = None

    @property
    def passed(self) -> bool:
        """Whether a job can run."""
        return all(check.passed for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        checks = [check.as_json() for check in self.checks]
        return {"checks": checks, "gpu": self.gpu.as_json() if self.gpu else None}
