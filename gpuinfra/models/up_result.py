"""What came of bringing a machine up."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuinfra.models.gpu import GpuFacts
from gpuinfra.models.plan import Plan
from gpuinfra.models.receipt import stamp
from gpuinfra.models.target import Target


@dataclass(frozen=True, slots=True)
class UpResult:
    """A machine that matches its spec now."""

    plan: Plan
    """What was done, at the place where it was done."""
    target: Target | None
    """None where the spec wants it off."""
    gpu: GpuFacts | None
    files: tuple[str, ...]
    """Target files that were written."""
    lease_until: datetime | None
    agent: str | None = None
    """Whether the guest agent can switch the machine off: `armed`, `not-armed` or `unknown`; None where it is off."""
    simulated: bool = False

    def as_json(self) -> dict[str, Any]:
        """For programs."""
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
