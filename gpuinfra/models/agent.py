"""What the guest agent of a machine says of itself, in `/run/gpuinfra/agent.json` there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

STATE_FILE = "/run/gpuinfra/agent.json"
"""Where it is on the machine."""
SCHEMA_VERSION = 1
ACTIONS = frozenset({"watching", "warning", "stopping-jobs", "deallocating"})
LONGEST = 64 * 1024
_LONGEST_TEXT = 1000


@dataclass(frozen=True, slots=True)
class AgentState:
    """What it knew and was about to do, at one moment of Azure's time."""

    at: datetime
    power_on: datetime
    until: datetime
    """When it ends the machine at the latest, by lease or cost cap."""
    cause: str
    """Why then, or why it ends the machine now: `lease over`, `cost cap`, `idle`, `job finished` or `evicted`."""
    idle_since: datetime | None
    """Since when there was no sign of life; None while there is one."""
    idle_until: datetime | None
    jobs: tuple[str, ...]
    """The runs whose job is alive."""
    sessions: int
    """SSH connections."""
    gpu_utilization: int | None
    """In percent, of the busiest GPU; None where there is none to ask."""
    action: str
    """One of ACTIONS."""
    last_error: str | None
    eviction_notice: bool
    ends_with: tuple[str, ...] = ()
    """Runs that need the machine now, where it is deallocated after the last of them."""
    finished_until: datetime | None = None
    """When it is deallocated because such runs have ended; None while a run needs it."""

    @property
    def is_ending(self) -> bool:
        """Whether it is about to switch the machine off."""
        return self.action in {"stopping-jobs", "deallocating"}

    @property
    def forecast(self) -> tuple[datetime, str]:
        """When the machine goes off if nothing else happens, and why."""
        ends = [(self.until, self.cause)]
        if self.idle_until:
            ends.append((self.idle_until, "idle"))
        if self.finished_until:
            ends.append((self.finished_until, "job finished"))
        return min(ends)

    def age_seconds(self, now: datetime) -> float:
        """How old this is: an agent that lives writes every five seconds."""
        return max(0.0, (now - self.at).total_seconds())

    def as_json(self) -> dict[str, Any]:
        """For programs, and as the agent itself writes it."""
        return {
            "schemaVersion": SCHEMA_VERSION,
            "at": _stamp(self.at),
            "powerOn": _stamp(self.power_on),
            "until": _stamp(self.until),
            "cause": self.cause,
            "idleSince": _stamp(self.idle_since),
            "idleUntil": _stamp(self.idle_until),
            "endsWith": list(self.ends_with),
            "finishedUntil": _stamp(self.finished_until),
            "jobs": list(self.jobs),
            "sessions": self.sessions,
            "gpuUtilization": self.gpu_utilization,
            "action": self.action,
            "lastError": self.last_error,
            "evictionNotice": self.eviction_notice,
        }


def parse_agent_state(text: str) -> AgentState | None:
    """The state in this text; None where it is none: the machine is the user's own, and anybody may write there."""
    if len(text) > LONGEST:
        return None
    try:
        found = json.loads(text)
        return _state(found) if isinstance(found, dict) else None
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None


def _state(found: Mapping[str, Any]) -> AgentState:
    if found["schemaVersion"] != SCHEMA_VERSION or found["action"] not in ACTIONS:
        raise ValueError("not of this schema")
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
    moment = datetime.fromisoformat(_text(value))
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _moment_or_none(value: Any) -> datetime | None:
    return None if value is None else _moment(value)


def _text(value: Any) -> str:
    """Text that may be shown: no line in it, nothing that a terminal would act on."""
    if not isinstance(value, str):
        raise TypeError("text expected")
    return "".join(character if character.isprintable() else " " for character in value[:_LONGEST_TEXT])


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a count expected")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("a list expected")
    return value


def _stamp(moment: datetime | None) -> str | None:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ") if moment else None
