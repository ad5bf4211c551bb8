"""Where a machine could be, and why it cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Candidate:
    """A size in a region, and in a zone of it where the spec names some."""

    region: str
    size: str
    zone: str | None = None

    def __str__(self) -> str:
        place = f"{self.region}, zone {self.zone}" if self.zone else self.region
        return f"{self.size} in {place}"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        zone = {"zone": self.zone} if self.zone else {}
        return {"region": self.region, "size": self.size, **zone}


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a candidate was passed over: Azure's code or ours, and words."""

    code: str
    text: str
    help: str | None = None


@dataclass(frozen=True, slots=True)
class Passed:
    """A candidate that was passed over, with every reason."""

    candidate: Candidate
    reasons: tuple[Reason, ...]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        reasons = [{"code": reason.code, "text": reason.text} for reason in self.reasons]
        return {**self.candidate.as_json(), "reasons": reasons}
