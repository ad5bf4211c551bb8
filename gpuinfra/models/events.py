"""Events that use cases report, and questions that they ask."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuinfra.models.consent import Decision
from gpuinfra.models.plan import Plan


@dataclass(frozen=True)
class ConsentDetails:
    """What a change stops or loses, to show before the question."""

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
    """A yes-or-no question."""

    text: str
    details: str | ConsentDetails | HostKeyDetails | None = None
    """What to show before the question."""
    default: bool = False


@dataclass(frozen=True)
class PlanReady:
    """A plan is about to be applied."""

    plan: Plan


@dataclass(frozen=True)
class Interrupted:
    """Ctrl-C interrupted a change: the resources that exist now."""

    name: str
    resources: Sequence[str] | None
    """None if Azure did not answer."""
    stops: datetime | None
    """When Azure's schedule deallocates the machine."""
    simulated: bool


@dataclass(frozen=True)
class MachineState:
    """A machine after Ctrl-C: `on`, `off`, `absent` or `unknown`, and its price per hour if it is on."""

    name: str
    power: str
    per_hour: float | None = None


@dataclass(frozen=True)
class CommandInterrupted:
    """Ctrl-C interrupted a command for several machines: their states, and what to run next."""

    machines: Sequence[MachineState]
    help: str


@dataclass(frozen=True)
class ReapInterrupted:
    """Ctrl-C interrupted `reap`: machines that Azure is deallocating, and those not started."""

    under_way: Sequence[str]
    not_begun: Sequence[str]


Event = PlanReady | Interrupted | CommandInterrupted | ReapInterrupted
