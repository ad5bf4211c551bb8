"""What `gpuinfra reap` decides, does and fails to do."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Ref
from gpuinfra.models.receipt import Receipt


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
    not_deleted: str = ""
    """Why the machine was not deleted, although `--delete` asks for it; empty otherwise."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "resourceGroup": self.ref.group,
            "action": (self.would or self.action).value,
            "cause": self.cause,
            **({"until": stamp(self.until)} if self.until else {}),
            **({"notDeleted": self.not_deleted} if self.not_deleted else {}),
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
    not_deleted: str = ""
    """As in `ReapDecision`."""

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
            **({"notDeleted": self.not_deleted} if self.not_deleted else {}),
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


@dataclass(frozen=True, slots=True)
class SpecSource:
    """The commit that decides which specs were deleted, and what is checked out."""

    ref: str
    """The default branch, such as `origin/main`; or what is checked out, if no default branch is known."""
    commit: str
    at: datetime
    """When it was committed."""
    checked_out: str
    """The branch, or the commit if none is checked out."""
    is_default: bool
    """Whether the checked-out commit is that one."""
    is_known: bool = True
    """Whether the clone knows the default branch. Otherwise a spec on any branch of the remote counts."""
    dirty: tuple[str, ...] = ()
    """Changed files that are not committed."""

    @property
    def why_not_clean(self) -> str:
        """Return why the checkout does not have the committed specs of the default branch, or an empty string."""
        if self.dirty:
            return f"{', '.join(self.dirty)} {'is' if len(self.dirty) == 1 else 'are'} not committed"
        return "" if self.is_default else f"{self.checked_out} is checked out, and not {self}"

    def __str__(self) -> str:
        return f"{self.ref} at {self.commit[:7]} of {stamp(self.at)}"

    def as_json(self) -> dict[str, Any]:
        return {
            "ref": self.ref,
            "commit": self.commit,
            "committedAt": stamp(self.at),
            "checkedOut": self.checked_out,
            "isDefault": self.is_default,
            "dirty": list(self.dirty),
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
    specs: SpecSource | None = None
    """What machines were compared with; None without `--specs`, or without a repository."""
    simulated: bool = False

    @property
    def did_nothing(self) -> bool:
        """Whether there was nothing to do and nothing failed."""
        removed = [orphan for orphan in self.orphans if orphan.action is ReapAction.DELETE]
        changed = self.stopped or self.started or self.deleted or removed
        return not (changed or self.failed or self.not_deleted or self.leaves_billed)

    @property
    def not_deleted(self) -> list[ReapDecision | Orphan]:
        """What `--delete` should have deleted, and what may hold outputs."""
        found: list[ReapDecision | Orphan] = [*self.kept, *(ended.verdict for ended in self.stopped), *self.orphans]
        return [each for each in found if each.not_deleted]

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
            "specs": self.specs.as_json() if self.specs else None,
            "simulated": self.simulated,
        }
