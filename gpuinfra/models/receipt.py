"""A receipt: the proof that billing stopped."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class Off(StrEnum):
    """How "off" was seen. Nothing else counts."""

    DEALLOCATED = "PowerState/deallocated"
    ABSENT = "404"


@dataclass(frozen=True, slots=True)
class Residue:
    """Something that is still paid for."""

    kind: str
    name: str
    per_month: float | None
    """US dollars, about; None where no price is known."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What ended, what it cost, what still costs, and how "off" was verified."""

    name: str
    verified: Off | None
    """None where "off" could not be seen: then nothing is proven."""
    at: datetime
    region: str | None = None
    size: str | None = None
    billed_from: datetime | None = None
    billed_to: datetime | None = None
    price_per_hour: float | None = None
    deleted: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """What was left on purpose, and why."""
    left: tuple[str, ...] = ()
    """What should be gone and is not."""
    residue: tuple[Residue, ...] = ()
    deletes: bool = False
    """It was to be gone, not only off."""
    simulated: bool = False

    @property
    def billed_seconds(self) -> float | None:
        """How long it was billed this time."""
        if self.billed_from is None or self.billed_to is None:
            return None
        return max(0.0, (self.billed_to - self.billed_from).total_seconds())

    @property
    def cost(self) -> float | None:
        """US dollars, at list price."""
        if self.billed_seconds is None or self.price_per_hour is None:
            return None
        return self.billed_seconds / 3600 * self.price_per_hour

    @property
    def is_proof(self) -> bool:
        """Off, and nothing left that should be gone."""
        return self.verified is not None and not self.left

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "off": self.verified is not None,
            "verifiedBy": self.verified.value if self.verified else None,
            "verifiedAt": stamp(self.at),
            "region": self.region,
            "size": self.size,
            "billedFrom": stamp(self.billed_from),
            "billedTo": stamp(self.billed_to),
            "billedSeconds": self.billed_seconds,
            "pricePerHourUsd": self.price_per_hour,
            "costUsd": None if self.cost is None else round(self.cost, 4),
            "deleted": list(self.deleted),
            "kept": list(self.kept),
            "left": list(self.left),
            "residue": [{"kind": each.kind, "name": each.name, "perMonthUsd": each.per_month} for each in self.residue],
            "simulated": self.simulated,
        }


def stamp(moment: datetime | None) -> str | None:
    """A moment as tags and documents have it: `2026-11-16T08:00:00Z`."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None
