"""What came of attaching a machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuinfra.models.checkup import Checkup
from gpuinfra.models.target import Target


@dataclass(frozen=True, slots=True)
class Attached:
    """A machine that is a target of the workspace now."""

    target: Target
    fingerprint: str
    """Of the machine's host key, as `ssh-keygen -l` prints it."""
    checkup: Checkup
    files: tuple[str, ...]
    """Those that were written; none where they were right already."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.target.name,
            "files": list(self.files),
            "fingerprint": self.fingerprint,
            **self.checkup.as_json(),
            "target": self.target.as_json(),
        }
