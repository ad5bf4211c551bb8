"""A plan: where the machine goes, what changes in Azure, and what it costs. Data only."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpuinfra.models.resource import Kind, Ref, Resource


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place for a machine: a size in a region, and a zone if the spec names zones."""

    region: str
    size: str
    zone: str | None = None

    def __str__(self) -> str:
        place = f"{self.region}, zone {self.zone}" if self.zone else self.region
        return f"{self.size} in {place}"

    def as_json(self) -> dict[str, Any]:
        zone = {"zone": self.zone} if self.zone else {}
        return {"region": self.region, "size": self.size, **zone}


@dataclass(frozen=True, slots=True)
class RejectionReason:
    """Why a candidate was rejected: a code from Azure or gpuinfra, and a sentence."""

    code: str
    text: str
    help: str | None = None


@dataclass(frozen=True, slots=True)
class RejectedCandidate:
    """A rejected candidate with every reason."""

    candidate: Candidate
    reasons: tuple[RejectionReason, ...]

    def as_json(self) -> dict[str, Any]:
        reasons = [{"code": reason.code, "text": reason.text} for reason in self.reasons]
        return {**self.candidate.as_json(), "reasons": reasons}


class Action(StrEnum):
    """What happens to a resource."""

    ADD = "add"
    CHANGE = "change"
    REPLACE = "replace"
    DESTROY = "destroy"


@dataclass(frozen=True, slots=True)
class Difference:
    """One property that differs from the spec."""

    what: str
    old: str
    new: str
    replaces: bool = False
    """Whether the change replaces the resource."""
    needs_off: bool = False
    """Whether the change is possible only while the machine is deallocated."""


class Power(StrEnum):
    """A change of the machine's power state."""

    START = "start"
    DEALLOCATE = "deallocate"


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one resource, and why."""

    action: Action
    ref: Ref
    summary: str = ""
    """A short description, such as `Standard_NC4as_T4_v3, southcentralus`."""
    differences: tuple[Difference, ...] = ()
    resource: Resource | None = None
    """The desired resource; None if the change deletes it."""
    power: Power | None = None
    loses: bool = False
    """Whether the content of the machine's disk is lost."""

    def as_json(self) -> dict[str, Any]:
        """Return this as a JSON object, without the ARM bodies."""
        plain: dict[str, Any] = {"action": self.action.value, "kind": self.ref.kind.value, "name": self.ref.name}
        if self.summary:
            plain["summary"] = self.summary
        if self.power:
            plain["power"] = self.power.value
        if self.differences:
            plain["differences"] = [
                {"what": each.what, "old": each.old, "new": each.new, "forcesReplacement": each.replaces}
                for each in self.differences
            ]
        return plain


@dataclass(frozen=True, slots=True)
class Price:
    """The machine's prices in US dollars; None if unknown."""

    per_hour: float | None = None
    disk_per_month: float | None = None
    address_per_month: float | None = None
    list_of: str | None = None
    """The month of the price list shipped with gpuinfra, if the hourly price comes from it."""

    @property
    def residue_per_month(self) -> float | None:
        """The cost per month while the machine is deallocated: disk and public IP."""
        parts = (self.disk_per_month, self.address_per_month)
        return None if None in parts else sum(part or 0 for part in parts)

    def as_json(self) -> dict[str, Any]:
        residue = self.residue_per_month
        return {"perHourUsd": self.per_hour, "listOf": self.list_of, "residuePerMonthUsd": residue}


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that `up` would do for one machine."""

    name: str
    subscription: str
    group: str
    candidate: Candidate | None
    """Where the machine is or will be; None if the spec keeps it off."""
    changes: tuple[Change, ...]
    price: Price = Price()
    rejected: tuple[RejectedCandidate, ...] = ()
    notes: tuple[str, ...] = ()
    wants_running: bool = True
    """Whether the machine is on afterwards."""
    needs_agent: bool = False
    """Whether only the guest agent ends the machine inside Azure. Without its role, `up` deletes the machine again."""

    @property
    def is_empty(self) -> bool:
        """Whether Azure already matches the spec."""
        return not self.changes

    @property
    def loses(self) -> bool:
        """Whether a disk's content is lost, which needs consent."""
        return any(change.loses for change in self.changes)

    @property
    def replaces_vm(self) -> bool:
        """Whether the VM is deleted and created again."""
        return any(change.ref.kind is Kind.VM and change.action is Action.REPLACE for change in self.changes)

    @property
    def switches_on(self) -> bool:
        """Whether the plan creates or starts a machine."""
        return self.wants_running and any(
            change.ref.kind is Kind.VM
            and (
                change.action in {Action.ADD, Action.REPLACE}
                or change.power is Power.START
                or any(each.needs_off for each in change.differences)
            )
            for change in self.changes
        )

    @property
    def restarts(self) -> bool:
        """Whether the machine is deallocated and started again for a change."""
        changed = (change for change in self.changes if change.action is Action.CHANGE)
        return any(each.needs_off for change in changed for each in change.differences)

    def count(self, action: Action) -> int:
        return sum(change.action is action for change in self.changes)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "subscription": self.subscription,
            "resourceGroup": self.group,
            "candidate": self.candidate.as_json() if self.candidate else None,
            "changes": [change.as_json() for change in self.changes],
            "summary": {action.value: self.count(action) for action in Action},
            "price": self.price.as_json(),
            "passedOver": [each.as_json() for each in self.rejected],
            "notes": list(self.notes),
        }
