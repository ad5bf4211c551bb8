"""What use cases report to their caller, and what they ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuinfra.models.consent import Decision
from gpuinfra.models.plan import Plan


@dataclass(frozen=True)
class ConsentDetails:
    """What a change would stop or lose, to show before the question."""

    name: str
    decision: Decision
    attached: Sequence[str] = ()


@dataclass(frozen=True)
class HostKeyDetails:
    """A host key that a machine shows for the first time."""

    place: str
    kind: str
    fingerprint: str


@dataclass(frozen=True)
class Question:
    """A question with yes or no for an answer."""

    text: str
    details: str | ConsentDetails | HostKeyDetails | None = None
    """What to show before the question."""
    default: bool = False


@dataclass(frozen=True)
class PlanReady:
    """A plan is about to be carried out."""

    plan: Plan


@dataclass(frozen=True)
class Interrupted:
    """Ctrl-C ended a change: which resources exist now."""

    name: str
    resources: Sequence[str] | None
    """None if Azure did not answer."""
    stops: datetime | None
    """When the machine stops by itself."""
    simulated: bool


@dataclass(frozen=True)
class ReapInterrupted:
    """Ctrl-C ended `reap`: machines that Azure still deallocates, and those that were not begun."""

    under_way: Sequence[str]
    not_begun: Sequence[str]


Event = PlanReady | Interrupted | ReapInterrupted
