"""The state of a machine's guest agent, as it writes it to `/run/gpuinfra/agent.json`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from gpuinfra.models.json_values import camel, parse_stamp, stamp

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

    @property
    def forecast(self) -> tuple[datetime, str]:
        """When the machine is deallocated if nothing changes, and why."""
        ends = [(self.until, self.cause)]
        if self.idle_until:
            ends.append((self.idle_until, "idle"))
        if self.finished_until:
            ends.append((self.finished_until, "job finished"))
        return min(ends)

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
