"""A machine that gpuinfra manages, as one row of `gpuinfra status`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuinfra.models.agent import AgentState
from gpuinfra.models.receipt import stamp


@dataclass(frozen=True, slots=True)
class ScheduledChange:
    """The next automatic start or stop of the machine."""

    at: datetime
    power: str
    """`deallocated` or `running`."""
    cause: str
    """`lease`, `hours` or `cost cap`."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine: size, place, power state, cost and lease."""

    name: str
    power_state: str
    """running, deallocated, stopped, starting, …; `unknown` if Azure does not report it."""
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
    """Differences from its spec in the workspace; empty without a spec."""
    spec_file: str | None = None
    tagged: bool = True
    """Whether it has gpuinfra's tags; without them only Azure's schedule stops it."""
    agent: AgentState | str | None = None
    """The guest agent's state, or why it is unknown; None if not queried."""
    cost: float | None = None
    """US dollars from power-on to `counted`, from all sources; None if not calculated."""
    counted: datetime | None = None

    def cost_so_far(self, now: datetime) -> float | None:
        """Return the list-price cost since power-on; 0 while it is deallocated, None if unknown."""
        if self.power_state == "deallocated":
            return 0.0
        if self.cost is not None and self.counted is not None:
            return self.cost + max(0.0, (now - self.counted).total_seconds()) / 3600 * (self.price_per_hour or 0.0)
        if self.since is None or self.price_per_hour is None:
            return None
        return max(0.0, (now - self.since).total_seconds()) / 3600 * self.price_per_hour

    def as_json(self, now: datetime) -> dict[str, Any]:
        """Return this as a JSON object."""
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
