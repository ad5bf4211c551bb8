"""A machine's lease, as `gpuinfra lease` shows it."""

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
    """What sets its end: `lease`, `hours` or `cost cap`."""
    lease: str
    """The length of a lease, as in the spec."""
    idle: str
    cap: str | None = None
    """The cost cap as a time from power-on."""
    cap_at: datetime | None = None
    hours: str | None = None
    changed: bool = False
    capped: bool = False
    """Whether the cost cap shortens it."""
    restarted: datetime | None = None
    """When the machine was started or changed outside gpuinfra after its lease ended."""
    agent_until: datetime | None = None
    """When the guest agent ends the machine at the latest, after such a start."""
    old_stop: datetime | None = None
    """When Azure's daily schedule may still stop the machine because it was moved too late."""
    simulated: bool = False

    @property
    def seconds_left(self) -> float:
        """Seconds until it ends; 0 if it is over."""
        until = self.machine.lease_until
        return max(0.0, (until - self.now).total_seconds()) if until else 0.0

    @property
    def cost_until_end(self) -> float | None:
        """The list-price cost from power-on to the end; None without a known price."""
        until = self.agent_until or self.machine.lease_until
        return self.machine.cost_so_far(max(until, self.now) if until else self.now)

    def as_json(self) -> dict[str, Any]:
        """Return this as a JSON object."""
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
            "scheduleMayStillStopAt": stamp(self.old_stop),
            "startedOutside": None
            if self.restarted is None
            else {"at": stamp(self.restarted), "agentUntil": stamp(self.agent_until)},
        }
        return {**shown, "simulated": True} if self.simulated else shown
