"""What machines cost in a period: the rows of `gpuinfra cost` and their total."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from gpuinfra.models.json_values import stamp


class Source(StrEnum):
    """The source of a time."""

    LOG = "activity log"
    LEDGER = "ledger"
    AZURE = "present state"
    """Tags and states of existing resources."""
    RUNS = "run records"
    """Start and end of jobs, as this workspace recorded them."""


class Certainty(StrEnum):
    """How certain an amount is, best first."""

    EXACT = "exact"
    """From the times in Azure's activity log, with known prices for compute, disk and address."""
    RECORDED = "recorded"
    """From this program's records: from the request for a machine until Azure reported it off."""
    ESTIMATED = "estimated"
    """A start, an end or a price is unknown. What an unknown start or end leaves open is a range."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """Seconds and US dollars of a period. Amounts can be added."""

    seconds: float = 0.0
    """Seconds on."""
    compute: float = 0.0
    disk: float = 0.0
    address: float = 0.0
    always_on: float = 0.0
    """The cost if the machine had been on for as long as it existed."""
    there: float = 0.0
    """Seconds for which the machine existed, on or off."""
    unpriced: float = 0.0
    """Seconds on without a known price; they are not in the totals."""
    disk_unpriced: float = 0.0
    """Seconds for which the cost of the disk is unknown."""
    address_unpriced: float = 0.0
    """Seconds for which the cost of the public IP is unknown."""
    possible: float = 0.0
    """Further seconds for which the machine may have been on. The sums above do not include this time."""
    possible_compute: float = 0.0
    possible_disk: float = 0.0
    possible_address: float = 0.0

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))

    @property
    def total(self) -> float:
        return self.compute + self.disk + self.address

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """The least and the greatest amount, by the name in JSON. They differ where a start or an end is unknown."""
        least = {
            "onSeconds": (self.seconds, self.possible),
            "computeUsd": (self.compute, self.possible_compute),
            "diskUsd": (self.disk, self.possible_disk),
            "addressUsd": (self.address, self.possible_address),
            "totalUsd": (self.total, self.possible_total),
        }
        return {name: (known, known + more) for name, (known, more) in least.items()}

    @property
    def possible_total(self) -> float:
        """What the machine may have cost in addition to the total."""
        return self.possible_compute + self.possible_disk + self.possible_address

    @property
    def missing(self) -> tuple[str, ...]:
        """The parts of the cost that the sums lack, at least for some of the time."""
        found = {"compute": self.unpriced, "disk": self.disk_unpriced, "address": self.address_unpriced}
        return tuple(name for name, seconds in found.items() if seconds)

    @property
    def off(self) -> float:
        """Seconds for which the machine existed and was certainly off."""
        return max(0.0, self.there - self.seconds - self.possible)

    @property
    def saved(self) -> float:
        """What the machine would have cost in its time off."""
        return max(0.0, self.always_on - self.compute - self.possible_compute)

    def as_json(self) -> dict[str, Any]:
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
            "missing": list(self.missing),
            "range": {name: {"min": round(low, 4), "max": round(high, 4)} for name, (low, high) in self.ranges.items()},
        }


@dataclass(frozen=True, slots=True)
class CostRow:
    """One row: a machine, a run, or a tag's value."""

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
    """All rows, and the sources of their amounts."""

    since: datetime
    until: datetime
    by: str
    rows: tuple[CostRow, ...]
    log: str = "read"
    """`read`, or why Azure's activity log was not read."""
    log_since: datetime | None = None
    """How far back the log was read."""
    receipts: str = "read"
    """`read`, or why the receipts that the team shares were not read."""
    prices: tuple[str, ...] = ()
    """The sources of prices: recorded prices, Azure's current list, the shipped list."""
    simulated: bool = False

    @property
    def total(self) -> Amounts:
        return sum((row.amounts for row in self.rows), Amounts())

    def as_json(self) -> dict[str, Any]:
        return {
            "since": stamp(self.since),
            "until": stamp(self.until),
            "by": self.by,
            "rows": [row.as_json() for row in self.rows],
            "total": self.total.as_json(),
            "activityLog": {"state": self.log, "since": stamp(self.log_since)},
            "receipts": {"state": self.receipts},
            "prices": list(self.prices),
            "simulated": self.simulated,
        }


def least_certain(found: Iterable[Certainty]) -> Certainty:
    """Return the lowest certainty."""
    order = list(Certainty)
    return max(found, key=order.index, default=Certainty.EXACT)
