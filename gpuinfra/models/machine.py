"""A machine that gpuinfra manages, as one row of `gpuinfra status`, and its lease."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuinfra.models.agent import AgentState
from gpuinfra.models.json_values import stamp


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
