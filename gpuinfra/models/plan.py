"""A plan: what would change in Azure, and what it would cost. It is data; nothing here acts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpuinfra.models.candidate import Candidate, Passed
from gpuinfra.models.resource import Kind, Ref, Resource


class Action(StrEnum):
    """What happens to a resource."""

    ADD = "add"
    CHANGE = "change"
    REPLACE = "replace"
    DESTROY = "destroy"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it should be."""

    what: str
    old: str
    new: str
    replaces: bool = False
    """It cannot be changed in place."""
    needs_off: bool = False
    """It can be changed in place only while the machine is deallocated."""


class Power(StrEnum):
    """What the plan does to the machine's power, apart from making and deleting it."""

    START = "start"
    DEALLOCATE = "deallocate"


@dataclass(frozen=True, slots=True)
class Change:
    """What happens to one resource, and why."""

    action: Action
    ref: Ref
    summary: str = ""
    """What it is, for people, such as `Standard_NC4as_T4_v3, southcentralus`."""
    differences: tuple[Difference, ...] = ()
    resource: Resource | None = None
    """What it should be; None where it goes."""
    power: Power | None = None
    loses: bool = False
    """What is on the machine's disk would be gone for good."""

    def as_json(self) -> dict[str, Any]:
        """For programs. Bodies are left out: they are ARM's, and not small."""
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
    """What the machine costs, in US dollars; None where no price is known."""

    per_hour: float | None = None
    disk_per_month: float | None = None
    address_per_month: float | None = None
    list_of: str | None = None
    """The month of the list that comes with gpuinfra, where an hour's price is from there: nobody else knew one."""

    @property
    def residue_per_month(self) -> float | None:
        """What is paid while the machine is deallocated: its disk and its address."""
        parts = (self.disk_per_month, self.address_per_month)
        return None if None in parts else sum(part or 0 for part in parts)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        residue = self.residue_per_month
        return {"perHourUsd": self.per_hour, "listOf": self.list_of, "residuePerMonthUsd": residue}


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that `up` would do for one machine."""

    name: str
    subscription: str
    group: str
    candidate: Candidate | None
    """Where the machine is or would be; None where the spec wants none."""
    changes: tuple[Change, ...]
    price: Price = Price()
    passed: tuple[Passed, ...] = ()
    notes: tuple[str, ...] = ()
    wants_running: bool = True
    """The machine is on when all is done."""

    @property
    def is_empty(self) -> bool:
        """Azure matches the file."""
        return not self.changes

    @property
    def loses(self) -> bool:
        """What is on a disk would be gone for good, so it has to be asked for."""
        return any(change.loses for change in self.changes)

    @property
    def switches_on(self) -> bool:
        """It makes a machine, or starts one."""
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
        """A change needs the machine off: it goes off and on again."""
        changed = (change for change in self.changes if change.action is Action.CHANGE)
        return any(each.needs_off for change in changed for each in change.differences)

    def count(self, action: Action) -> int:
        """How many resources meet this fate."""
        return sum(change.action is action for change in self.changes)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "subscription": self.subscription,
            "resourceGroup": self.group,
            "candidate": self.candidate.as_json() if self.candidate else None,
            "changes": [change.as_json() for change in self.changes],
            "summary": {action.value: self.count(action) for action in Action},
            "price": self.price.as_json(),
            "passedOver": [passed.as_json() for passed in self.passed],
            "notes": list(self.notes),
        }
