"""What `up`, `attach` and `detach` return."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuinfra.models.gpu import GpuFacts
from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Plan
from gpuinfra.models.run import Run
from gpuinfra.models.target import Checkup, Target


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
