"""What `reap` finds, does and could not do: plain values, so that a view can show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from gpuinfra.models.receipt import Receipt, stamp
from gpuinfra.models.resource import Ref


class ReapAction(StrEnum):
    """What becomes of a machine, or of a part that has lost its machine."""

    STOP = "stop"
    START = "start"
    DELETE = "delete"
    KEEP = "keep"
    PROTECTED = "protected"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What should become of one machine, and why."""

    name: str
    ref: Ref
    action: ReapAction
    cause: str = ""
    """In words; empty where there is nothing to say."""
    would: ReapAction | None = None
    """What would be done to a protected one."""
    until: datetime | None = None
    """Until when one that is started may be on."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "resourceGroup": self.ref.group,
            "action": (self.would or self.action).value,
            "cause": self.cause,
            **({"until": stamp(self.until)} if self.until else {}),
        }


@dataclass(frozen=True, slots=True)
class Orphan:
    """A part of ours whose machine is nowhere."""

    name: str
    """The machine's that it was made for."""
    ref: Ref
    action: ReapAction
    cause: str
    since: datetime | None = None
    """When it was last made or changed."""
    per_month: float | None = None
    """US dollars, about; None where no price is known, or there is none."""
    removed: bool = False

    def as_json(self) -> dict[str, Any]:
        """For programs."""
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
class Untagged:
    """A machine of ours by its name that has lost its tags: nothing is done to it."""

    ref: Ref
    power: str

    @property
    def is_billed(self) -> bool:
        """Whether it may cost something."""
        return self.power != "deallocated"

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"name": self.ref.name, "resourceGroup": self.ref.group, "powerState": self.power}


@dataclass(frozen=True, slots=True)
class Ended:
    """A machine that was stopped or deleted; without a receipt, one that would be."""

    verdict: Verdict
    receipt: Receipt | None = None

    def as_json(self) -> dict[str, Any]:
        """For programs: the receipt, and why."""
        return {**(self.receipt.as_json() if self.receipt else {}), **self.verdict.as_json()}


@dataclass(frozen=True, slots=True)
class Failure:
    """What could not be done."""

    name: str
    action: str
    code: str
    message: str
    cause: str = ""
    group: str | None = None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "resourceGroup": self.group,
            "action": self.action,
            "cause": self.cause,
            "code": self.code,
            "message": self.message,
        }


@dataclass
class Reaped:
    """All of it. Of a dry run: what would be."""

    dry_run: bool
    machines: int = 0
    """How many of ours were looked at."""
    stopped: list[Ended] = field(default_factory=list)
    started: list[Verdict] = field(default_factory=list)
    deleted: list[Ended] = field(default_factory=list)
    protected: list[Verdict] = field(default_factory=list)
    kept: list[Verdict] = field(default_factory=list)
    """Off, and there is still something to say of it."""
    orphans: list[Orphan] = field(default_factory=list)
    failed: list[Failure] = field(default_factory=list)
    untagged: list[Untagged] = field(default_factory=list)
    left_alone: list[str] = field(default_factory=list)
    """A line for each resource that carries our tag and is not ours."""
    notes: list[str] = field(default_factory=list)
    simulated: bool = False

    @property
    def did_nothing(self) -> bool:
        """Nothing was done, or would be, and nothing failed."""
        removed = [orphan for orphan in self.orphans if orphan.action is ReapAction.DELETE]
        billed = any(each.is_billed for each in self.untagged)
        return not (self.stopped or self.started or self.deleted or self.failed or removed or billed)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        lists: dict[str, Sequence[Ended | Verdict | Orphan | Failure | Untagged]] = {
            "stopped": self.stopped,
            "started": self.started,
            "deleted": self.deleted,
            "protected": self.protected,
            "kept": self.kept,
            "orphans": self.orphans,
            "failed": self.failed,
            "untagged": self.untagged,
        }
        return {
            "dryRun": self.dry_run,
            "machines": self.machines,
            **{name: [each.as_json() for each in found] for name, found in lists.items()},
            "leftAlone": list(self.left_alone),
            "notes": list(self.notes),
            "simulated": self.simulated,
        }
