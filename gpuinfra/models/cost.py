"""What machines have cost over a span of time: lines of `gpuinfra cost`, and their sum."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from gpuinfra.models.receipt import stamp


class Source(StrEnum):
    """Where a moment is known from."""

    LOG = "activity log"
    LEDGER = "ledger"
    AZURE = "present state"
    """Tags and states of what is there now."""
    RUNS = "run records"
    """When jobs began and ended, as this workspace knows it."""


class Certainty(StrEnum):
    """How sure it is, the surest first."""

    EXACT = "exact"
    """By the moments of Azure's own log."""
    RECORDED = "recorded"
    """By what this program wrote down: from when a machine was asked for until it was seen to be off."""
    ESTIMATED = "estimated"
    """A beginning or an end is not known. For an end Azure's last change, or the end of the lease, is taken."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """Seconds and US dollars of a span of time. They add up."""

    seconds: float = 0.0
    """For which the machine was on."""
    compute: float = 0.0
    disk: float = 0.0
    address: float = 0.0
    always_on: float = 0.0
    """What the machine would have cost, had it been on for as long as it was there."""
    there: float = 0.0
    """Seconds for which the machine was there, on or off."""
    unpriced: float = 0.0
    """Seconds for which no price is known; they are not in the sums."""

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @property
    def total(self) -> float:
        """All that was paid."""
        return self.compute + self.disk + self.address

    @property
    def off(self) -> float:
        """Seconds for which the machine was there and off."""
        return max(0.0, self.there - self.seconds)

    @property
    def saved(self) -> float:
        """What the time off would have cost."""
        return max(0.0, self.always_on - self.compute)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "onSeconds": round(self.seconds, 3),
            "offSeconds": round(self.off, 3),
            "computeUsd": round(self.compute, 4),
            "diskUsd": round(self.disk, 4),
            "addressUsd": round(self.address, 4),
            "totalUsd": round(self.total, 4),
            "alwaysOnUsd": round(self.always_on, 4),
            "savedUsd": round(self.saved, 4),
            "unpricedSeconds": round(self.unpriced, 3),
        }


@dataclass(frozen=True, slots=True)
class CostRow:
    """One line: a machine, a run, or a tag's value."""

    label: str
    amounts: Amounts
    machine: str | None = None
    size: str | None = None
    region: str | None = None
    spot: bool = False
    is_on: bool = False
    sources: tuple[Source, ...] = ()
    sure: Certainty = Certainty.EXACT

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "label": self.label,
            "machine": self.machine,
            "size": self.size,
            "region": self.region,
            "spot": self.spot,
            "on": self.is_on,
            **self.amounts.as_json(),
            "sources": [source.value for source in self.sources],
            "sure": self.sure.value,
        }


@dataclass(frozen=True, slots=True)
class CostReport:
    """All lines, and what they rest on."""

    since: datetime
    until: datetime
    by: str
    rows: tuple[CostRow, ...]
    log: str = "read"
    """`read`, or why Azure's activity log was not."""
    log_since: datetime | None = None
    """How far back the log was read."""
    prices: tuple[str, ...] = ()
    """Where prices are from: what was paid, Azure's list of today, a list that is shipped."""
    simulated: bool = False

    @property
    def total(self) -> Amounts:
        """The sum of all lines."""
        return sum((row.amounts for row in self.rows), Amounts())

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "since": stamp(self.since),
            "until": stamp(self.until),
            "by": self.by,
            "rows": [row.as_json() for row in self.rows],
            "total": self.total.as_json(),
            "activityLog": {"state": self.log, "since": stamp(self.log_since)},
            "prices": list(self.prices),
            "simulated": self.simulated,
        }


def least_sure(found: Iterable[Certainty]) -> Certainty:
    """What holds for all of them together."""
    order = list(Certainty)
    return max(found, key=order.index, default=Certainty.EXACT)
