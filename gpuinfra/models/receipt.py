"""A receipt: the proof that billing stopped."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

MORNING = 8
"""The hour at which somebody would come and see a machine that was left on."""


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
    spot: bool = False
    group: str | None = None
    """The resource group that its machine was found in."""
    billed_from: datetime | None = None
    billed_to: datetime | None = None
    price_per_hour: float | None = None
    """The last one, where it was not the same all the time."""
    cost_usd: float | None = None
    """What the time on cost, by all that is known; None where only its times and its price are."""
    deleted: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """What was left on purpose, and why."""
    left: tuple[str, ...] = ()
    """What should be gone and is not."""
    residue: tuple[Residue, ...] = ()
    deletes: bool = False
    """It was to be gone, not only off."""
    simulated: bool = False
    cause: str = ""
    """Who or what ended it: `gpuinfra down`, `reap: the lease is over`, …"""
    existed: bool = True
    """Whether anything shows that the machine was ever there; without it, absent is not "gone"."""
    left_on_until: datetime | None = None
    """Until when it might have been left on, had nobody ended it: see `next_morning`. None where nothing ended now."""

    @property
    def billed_seconds(self) -> float | None:
        """How long it was billed this time."""
        if self.billed_from is None or self.billed_to is None:
            return None
        return max(0.0, (self.billed_to - self.billed_from).total_seconds())

    @property
    def cost(self) -> float | None:
        """US dollars, at list price."""
        if self.cost_usd is not None:
            return self.cost_usd
        if self.billed_seconds is None or self.price_per_hour is None:
            return None
        return self.billed_seconds / 3600 * self.price_per_hour

    @property
    def saves_per_day(self) -> float | None:
        """US dollars a day that it costs no more, now that it is off."""
        if self.verified is None or self.price_per_hour is None or self.billed_from is None:
            return None
        return self.price_per_hour * 24

    @property
    def left_on_cost(self) -> float | None:
        """What it would have cost besides, left on until then."""
        if self.saves_per_day is None or self.left_on_until is None:
            return None
        return left_on_cost(self.billed_to or self.at, self.left_on_until, self.price_per_hour)

    @property
    def remove_command(self) -> str | None:
        """What ends that which still costs; None where nothing does, or where "off" comes first."""
        return self._command("down", "--delete") if self.residue and self.is_proof else None

    @property
    def next_commands(self) -> tuple[str, ...]:
        """What to run where nothing is proven. Who wanted it off and not gone must not be led to lose the disk."""
        if self.is_proof:
            return ()
        return self._command("down", "--delete" if self.deletes else ""), self._command("status")

    def _command(self, verb: str, option: str = "") -> str:
        words = ("gpuinfra", verb, self.name, option, "--sandbox" if self.simulated else "")
        return " ".join(word for word in words if word)

    @property
    def is_proof(self) -> bool:
        """Off, and nothing left that should be gone."""
        return self.verified is not None and not self.left

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "off": self.verified is not None,
            "existed": self.existed,
            "verifiedBy": self.verified.value if self.verified else None,
            "verifiedAt": stamp(self.at),
            "region": self.region,
            "size": self.size,
            "spot": self.spot,
            "resourceGroup": self.group,
            "cause": self.cause or None,
            "billedFrom": stamp(self.billed_from),
            "billedTo": stamp(self.billed_to),
            "billedSeconds": self.billed_seconds,
            "pricePerHourUsd": self.price_per_hour,
            "costUsd": _cents(self.cost),
            "savesPerDayUsd": _cents(self.saves_per_day),
            "leftOn": None
            if self.left_on_cost is None
            else {"until": stamp(self.left_on_until), "costUsd": _cents(self.left_on_cost)},
            "deleted": list(self.deleted),
            "kept": list(self.kept),
            "left": list(self.left),
            "residue": [{"kind": each.kind, "name": each.name, "perMonthUsd": each.per_month} for each in self.residue],
            "removeCommand": self.remove_command,
            "nextCommands": list(self.next_commands),
            "simulated": self.simulated,
        }


def next_morning(now: datetime) -> datetime:
    """The next eight o'clock, by the clocks of the zone that `now` is in."""
    day = (now if now.hour < MORNING else now + timedelta(days=1)).date()
    return datetime(day.year, day.month, day.day, MORNING, tzinfo=now.tzinfo)


def left_on_cost(now: datetime, until: datetime, price_per_hour: float | None) -> float | None:
    """What a machine costs from now until then, in US dollars; None where no price is known."""
    if price_per_hour is None:
        return None
    # By timestamps: two moments of one zone are subtracted by its clocks, which may change in between.
    return max(0.0, until.timestamp() - now.timestamp()) / 3600 * price_per_hour


def _cents(dollars: float | None) -> float | None:
    return None if dollars is None else round(dollars, 4)


def stamp(moment: datetime | None) -> str | None:
    """A moment as tags and documents have it: `2026-11-16T08:00:00Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None
