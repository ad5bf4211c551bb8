"""Until when a machine may be on, and what that depends on: what `lease` shows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuinfra.models.machine import Machine
from gpuinfra.models.receipt import stamp


@dataclass(frozen=True, slots=True)
class LeaseState:
    """The lease of one machine at one moment."""

    machine: Machine
    now: datetime
    cause: str
    """What its end depends on: `lease`, `hours` or `cost cap`."""
    lease: str
    """How long a lease is, as a spec says it."""
    idle: str
    cap: str | None = None
    """The cost cap as a time from power-on."""
    cap_at: datetime | None = None
    hours: str | None = None
    changed: bool = False
    capped: bool = False
    """Whether it would end later but for the cost cap."""
    simulated: bool = False

    @property
    def seconds_left(self) -> float:
        """How long it may still be on; 0 where it should be off."""
        until = self.machine.lease_until
        return max(0.0, (until - self.now).total_seconds()) if until else 0.0

    @property
    def cost_until_end(self) -> float | None:
        """What it will have cost at its end since it was switched on, at list price; None where no price is known."""
        until = self.machine.lease_until
        return self.machine.cost_so_far(max(until, self.now) if until else self.now)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        cost, total = self.machine.cost_so_far(self.now), self.cost_until_end
        shown = {
            "name": self.machine.name,
            "resourceGroup": self.machine.group,
            "powerState": self.machine.power_state,
            "onSince": stamp(self.machine.since) if self.machine.power_state != "deallocated" else None,
            "leaseUntil": stamp(self.machine.lease_until),
            "leaseSecondsLeft": self.seconds_left,
            "cause": self.cause,
            "terms": {"lease": self.lease, "idle": self.idle, "cap": self.cap},
            "capAt": stamp(self.cap_at),
            "hours": self.hours,
            "pricePerHourUsd": self.machine.price_per_hour,
            "costUsd": None if cost is None else round(cost, 4),
            "costAtEndUsd": None if total is None else round(total, 4),
            "changed": self.changed,
            "capped": self.capped,
        }
        return {**shown, "simulated": True} if self.simulated else shown
