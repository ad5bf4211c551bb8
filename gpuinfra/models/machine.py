"""A machine that gpuinfra manages, as one row of `gpuinfra status`: its lease, and the state of its guest agent."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from gpuinfra.models.json_values import camel, parse_stamp, stamp
from gpuinfra.models.stay import Purpose

STATE_FILE = "/run/gpuinfra/agent.json"
"""The path on the machine."""
SCHEMA_VERSION = 1
ACTIONS = frozenset({"watching", "warning", "stopping-jobs", "deallocating"})
MAX_BYTES = 64 * 1024
_MAX_TEXT = 1000


@dataclass(frozen=True, slots=True)
class AgentState:
    """What the agent knew and planned at one moment, by Azure's clock."""

    at: datetime
    power_on: datetime
    until: datetime
    """When the agent deallocates the machine at the latest, by lease or cost cap."""
    cause: str
    """Why at that time, or why now: `lease over`, `cost cap`, `idle`, `job finished` or `evicted`."""
    idle_since: datetime | None
    """Since when there is no job, login or GPU use; None while there is some."""
    idle_until: datetime | None
    jobs: tuple[str, ...]
    """The ids of runs whose job is running."""
    sessions: int
    """The number of SSH connections."""
    gpu_utilization: int | None
    """Percent, of the busiest GPU; None without a GPU."""
    action: str
    """One of ACTIONS."""
    last_error: str | None
    eviction_notice: bool
    ends_with: tuple[str, ...] = ()
    """Runs after which the machine is deallocated."""
    finished_until: datetime | None = None
    """When the machine is deallocated because those runs have ended; None while one is running."""
    held_for: str | None = None
    """The failed run for which the machine stays on for a look, until `held_until`."""
    held_until: datetime | None = None

    @property
    def forecast(self) -> tuple[datetime, str]:
        """When the machine is deallocated if nothing changes, and why."""
        ends = [(self.until, self.cause)]
        if self.idle_until:
            ends.append((self.idle_until, "idle"))
        if self.finished_until:
            ends.append((self.finished_until, "job finished"))
        return min(ends, key=lambda end: end[0])  # of two at one time, the first

    def age_seconds(self, now: datetime) -> float:
        """Return the age of this state. A running agent writes every five seconds."""
        return max(0.0, (now - self.at).total_seconds())

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object that the agent writes."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        plain = {name: stamp(value) if isinstance(value, datetime) else value for name, value in found.items()}
        lists = {"jobs": list(self.jobs), "ends_with": list(self.ends_with)}
        return {"schemaVersion": SCHEMA_VERSION} | {camel(name): value for name, value in (plain | lists).items()}


def parse_agent_state(text: str) -> AgentState | None:
    """Return the state in this text, or None if it is malformed: any user of the machine can write the file."""
    if len(text) > MAX_BYTES:
        return None
    try:
        found = json.loads(text)
        return _state(found) if isinstance(found, dict) else None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _state(found: Mapping[str, Any]) -> AgentState:
    if found["schemaVersion"] != SCHEMA_VERSION or found["action"] not in ACTIONS:
        raise ValueError("unknown schema")
    return AgentState(
        at=_moment(found["at"]),
        power_on=_moment(found["powerOn"]),
        until=_moment(found["until"]),
        cause=_text(found["cause"]),
        idle_since=_moment_or_none(found["idleSince"]),
        idle_until=_moment_or_none(found["idleUntil"]),
        jobs=tuple(_text(job) for job in _list(found["jobs"])),
        sessions=_count(found["sessions"]),
        gpu_utilization=None if found["gpuUtilization"] is None else _count(found["gpuUtilization"]),
        action=found["action"],
        last_error=None if found["lastError"] is None else _text(found["lastError"]),
        eviction_notice=found["evictionNotice"] is True,
        # An older agent does not write these.
        ends_with=tuple(_text(run) for run in _list(found.get("endsWith", []))),
        finished_until=_moment_or_none(found.get("finishedUntil")),
        held_for=_text(held) if (held := found.get("heldFor")) is not None else None,
        held_until=_moment_or_none(found.get("heldUntil")),
    )


def _moment(value: Any) -> datetime:
    if moment := parse_stamp(_text(value)):
        return moment
    raise ValueError("a time expected")


def _moment_or_none(value: Any) -> datetime | None:
    return None if value is None else _moment(value)


def _text(value: Any) -> str:
    """Return text that is safe to print: one line, without control characters."""
    if not isinstance(value, str):
        raise TypeError("text expected")
    return "".join(character if character.isprintable() else " " for character in value[:_MAX_TEXT])


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a count expected")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("a list expected")
    return value


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
    purpose: Purpose | None = None
    """What it is on for without a client; None if it is off, or that is not known."""

    def cost_so_far(self, now: datetime) -> float | None:
        """Return the list-price cost since power-on; 0 while it is deallocated, None if unknown."""
        if self.power_state == "deallocated":
            return 0.0
        if self.power_state == "deallocating":
            return self.cost  # Azure no longer bills it
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
            "onFor": self.purpose.as_json() if self.purpose else None,
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
            "onFor": self.machine.purpose.as_json() if self.machine.purpose else None,
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
