"""A machine of ours as the subscription shows it: a line of `status`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuinfra.models.agent import AgentState
from gpuinfra.models.receipt import stamp


@dataclass(frozen=True, slots=True)
class ScheduledChange:
    """The next moment at which something will switch the machine by itself."""

    at: datetime
    power: str
    """`deallocated` or `running`."""
    cause: str
    """`lease`, `hours` or `cost cap`."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine: what it is, what it does, what it costs."""

    name: str
    power_state: str
    """running, deallocated, stopped, starting, …; `unknown` where Azure does not say."""
    provisioning_state: str
    region: str
    size: str
    group: str
    since: datetime | None = None
    zone: str | None = None
    spot: bool = False
    price_per_hour: float | None = None
    lease_until: datetime | None = None
    next_change: ScheduledChange | None = None
    drift: tuple[str, ...] = ()
    """How it differs from its spec in the workspace; empty also where there is no spec."""
    spec_file: str | None = None
    tagged: bool = True
    """Whether it carries our tags; without them nothing but Azure's own schedule stops it."""
    agent: AgentState | str | None = None
    """What its guest agent says, or why that is not known; None where it was not asked."""
    cost: float | None = None
    """US dollars since it was switched on, at `counted`, by all that is known; None where nobody counted."""
    counted: datetime | None = None

    def cost_so_far(self, now: datetime) -> float | None:
        """What it cost since it was switched on, at list price; 0 while nothing is billed."""
        if self.power_state == "deallocated":
            return 0.0
        if self.cost is not None and self.counted is not None:
            return self.cost + max(0.0, (now - self.counted).total_seconds()) / 3600 * (self.price_per_hour or 0.0)
        if self.since is None or self.price_per_hour is None:
            return None
        return max(0.0, (now - self.since).total_seconds()) / 3600 * self.price_per_hour

    def as_json(self, now: datetime) -> dict[str, Any]:
        """For programs."""
        cost, lease = self.cost_so_far(now), self.lease_until
        return {
            "name": self.name,
            "powerState": self.power_state,
            "provisioningState": self.provisioning_state,
            "region": self.region,
            "zone": self.zone,
            "size": self.size,
            "spot": self.spot,
            "resourceGroup": self.group,
            "since": stamp(self.since),
            "pricePerHourUsd": self.price_per_hour,
            "costUsd": None if cost is None else round(cost, 4),
            "leaseUntil": stamp(lease),
            "leaseSecondsLeft": None if lease is None else (lease - now).total_seconds(),
            "nextChange": None
            if self.next_change is None
            else {
                "at": stamp(self.next_change.at),
                "powerState": self.next_change.power,
                "cause": self.next_change.cause,
            },
            "drift": list(self.drift),
            "tagged": self.tagged,
            "spec": self.spec_file,
            "agent": {"problem": self.agent} if isinstance(self.agent, str) else self.agent and self.agent.as_json(),
        }
