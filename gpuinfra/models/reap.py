"""What `gpuinfra reap` decides, does and fails to do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from gpuinfra.models.json_values import stamp
from gpuinfra.models.receipt import Receipt
from gpuinfra.models.resource import Ref


class ReapAction(StrEnum):
    """What happens to a machine, or to a resource without its machine."""

    STOP = "stop"
    START = "start"
    DELETE = "delete"
    KEEP = "keep"
    PROTECTED = "protected"


@dataclass(frozen=True, slots=True)
class ReapDecision:
    """What should happen to one machine, and why."""

    name: str
    ref: Ref
    action: ReapAction
    cause: str = ""
    """The reason as text; may be empty."""
    would: ReapAction | None = None
    """What would happen if it were not protected."""
    until: datetime | None = None
    """For START: until when the machine may be on."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "resourceGroup": self.ref.group,
            "action": (self.would or self.action).value,
            "cause": self.cause,
            **({"until": stamp(self.until)} if self.until else {}),
        }


@dataclass(frozen=True, slots=True)
class Orphan:
    """A resource created by gpuinfra whose machine no longer exists."""

    name: str
    """The name of the machine that it belonged to."""
    ref: Ref
    action: ReapAction
    cause: str
    since: datetime | None = None
    """When it was last created or changed."""
    per_month: float | None = None
    """Approximate US dollars; None without a known price."""
    removed: bool = False

    def as_json(self) -> dict[str, Any]:
        return {
            "kind": self.ref.kind.value,
            "name": self.ref.name,
            "resourceGroup": self.ref.group,
            "machine": self.name,
            "action": self.action.value,
            "removed": self.removed,
            "cause": self.cause,
            "since": stamp(self.since),
            "perMonthUsd": self.per_month,
        }


@dataclass(frozen=True, slots=True)
class UntaggedMachine:
    """A machine with gpuinfra's name but without its tags. `reap` does not change it."""

    ref: Ref
    power: str

    @property
    def is_billed(self) -> bool:
        return self.power != "deallocated"

    def as_json(self) -> dict[str, Any]:
        return {"name": self.ref.name, "resourceGroup": self.ref.group, "powerState": self.power}


@dataclass(frozen=True, slots=True)
class UnrecognisedMachine(UntaggedMachine):
    """A machine with gpuinfra's tags whose disk or NIC was replaced. `reap` does not change it."""

    reason: str

    def as_json(self) -> dict[str, Any]:
        return {"name": self.ref.name, "resourceGroup": self.ref.group, "powerState": self.power, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class EndedMachine:
    """A machine that was stopped or deleted; in a dry run, without a receipt."""

    verdict: ReapDecision
    receipt: Receipt | None = None

    def as_json(self) -> dict[str, Any]:
        return {**(self.receipt.as_json() if self.receipt else {}), **self.verdict.as_json()}


@dataclass(frozen=True, slots=True)
class ReapFailure:
    """An action that failed."""

    name: str
    action: str
    code: str
    message: str
    cause: str = ""
    group: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "resourceGroup": self.group,
            "action": self.action,
            "cause": self.cause,
            "code": self.code,
            "message": self.message,
        }


@dataclass
class ReapResult:
    """Everything that `reap` did; in a dry run, everything that it would do."""

    dry_run: bool
    machines: int = 0
    """The number of machines that were checked."""
    stopped: list[EndedMachine] = field(default_factory=list)
    started: list[ReapDecision] = field(default_factory=list)
    deleted: list[EndedMachine] = field(default_factory=list)
    protected: list[ReapDecision] = field(default_factory=list)
    kept: list[ReapDecision] = field(default_factory=list)
    """Machines that are off, with a remark."""
    orphans: list[Orphan] = field(default_factory=list)
    failed: list[ReapFailure] = field(default_factory=list)
    untagged: list[UntaggedMachine] = field(default_factory=list)
    unrecognised: list[UnrecognisedMachine] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    """One line for each resource that has gpuinfra's tag but was not created by it."""
    notes: list[str] = field(default_factory=list)
    simulated: bool = False

    @property
    def did_nothing(self) -> bool:
        """Whether there was nothing to do and nothing failed."""
        removed = [orphan for orphan in self.orphans if orphan.action is ReapAction.DELETE]
        return not (self.stopped or self.started or self.deleted or self.failed or removed or self.leaves_billed)

    @property
    def leaves_billed(self) -> bool:
        """Whether a machine is billed that may be gpuinfra's own and was not changed."""
        return any(each.is_billed for each in (*self.untagged, *self.unrecognised))

    def as_json(self) -> dict[str, Any]:
        lists: dict[str, Sequence[EndedMachine | ReapDecision | Orphan | ReapFailure | UntaggedMachine]] = {
            "stopped": self.stopped,
            "started": self.started,
            "deleted": self.deleted,
            "protected": self.protected,
            "kept": self.kept,
            "orphans": self.orphans,
            "failed": self.failed,
            "untagged": self.untagged,
            "unrecognised": self.unrecognised,
        }
        return {
            "dryRun": self.dry_run,
            "machines": self.machines,
            **{name: [each.as_json() for each in found] for name, found in lists.items()},
            "leftAlone": list(self.left_alone),
            "notes": list(self.notes),
            "simulated": self.simulated,
        }
