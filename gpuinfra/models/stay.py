"""Why a machine stays on without a client, until when, and what that can cost."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from gpuinfra.models.json_values import stamp


class Reason(StrEnum):
    """Why a machine stays on without a client."""

    FAILED_JOB = "failed-job"
    """`keepOnFailure`: a user can look at what the job left."""
    JOB = "job"
    """A job runs, and its client has detached."""


@dataclass(frozen=True, slots=True)
class Purpose:
    """What a machine is on for, as its tag says."""

    reason: Reason
    run: str

    @property
    def words(self) -> str:
        """The purpose, to follow `on for`."""
        return f"a look at failed run {self.run}" if self.reason is Reason.FAILED_JOB else f"detached run {self.run}"

    def as_json(self) -> dict[str, Any]:
        return {"reason": self.reason.value, "run": self.run}


@dataclass(frozen=True, slots=True)
class Stay:
    """A machine that a command leaves on, and what ends it without a client. Costs are at list price."""

    purpose: Purpose
    since: datetime
    """The time of this answer, by Azure's clock."""
    until: datetime
    """When its lease ends."""
    backstop: datetime | None
    """When Azure's schedule stops it if nothing else has; None without the schedule."""
    has_agent: bool
    """Whether its guest agent has the role to deallocate it."""
    price_per_hour: float | None = None
    after_run: str = ""
    """What `run` was to do with it after the job: `deallocate`, `delete` or `keep`."""
    keep_on_failure: float | None = None
    """For how many seconds the machine stays on after a job that fails."""
    places: tuple[str, ...] = ()
    """Where the machine has what the failed job left."""

    @property
    def is_ended(self) -> bool:
        """Whether anything in Azure ends it."""
        return self.has_agent or self.backstop is not None

    @property
    def latest(self) -> datetime:
        """When it goes off at the latest."""
        return self.backstop or self.until

    @property
    def cost(self) -> float | None:
        """US dollars from now until its lease ends; None without a price."""
        return self._cost_until(self.until)

    @property
    def most(self) -> float | None:
        """US dollars from now until it goes off at the latest; None without a price."""
        return self._cost_until(self.latest)

    def _cost_until(self, end: datetime) -> float | None:
        if self.price_per_hour is None:
            return None
        return max(0.0, (end - self.since).total_seconds()) / 3600 * self.price_per_hour

    def as_json(self) -> dict[str, Any]:
        return {
            **self.purpose.as_json(),
            "until": stamp(self.until),
            "latest": stamp(self.latest),
            "endedBy": [*(["agent"] if self.has_agent else []), *(["schedule"] if self.backstop else [])],
            "costUsd": None if self.cost is None else round(self.cost, 4),
            "mostUsd": None if self.most is None else round(self.most, 4),
            "places": list(self.places),
        }
