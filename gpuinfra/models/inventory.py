"""What is in Azure in addition to the machines of the specs, and what all of it costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpuinfra.models.plan import Kind, Plan, Ref


class Reason(StrEnum):
    """Why no spec describes a resource."""

    NO_SPEC = "no-spec"
    """A machine of gpuinfra whose spec was deleted or renamed."""
    NO_MACHINE = "no-machine"
    """A disk or public IP of gpuinfra whose machine no longer exists."""
    FOREIGN = "foreign"
    """A GPU VM of others in a resource group that has one of our machines or specs."""


@dataclass(frozen=True, slots=True)
class UnmanagedResource:
    """A resource that costs money and that no spec describes."""

    ref: Ref
    reason: Reason
    cause: str
    """Such as `no spec in git since 2026-11-18 10:02Z`."""
    command: str | None = None
    """The command that ends it, without `--sandbox`; None if gpuinfra leaves it alone."""
    power_state: str | None = None
    """Of a VM."""
    size: str = ""
    per_hour: float | None = None
    """US dollars per hour while a VM is on; None if unknown."""
    per_month: float | None = None
    """US dollars per month for disk and public IP; None if unknown."""
    hours_left: float | None = 0.0
    """How long a VM that is on may stay on, to the end of its lease; None if its lease is not known."""

    @property
    def is_pending(self) -> bool:
        """Whether git asks for its end."""
        return self.reason is Reason.NO_SPEC

    @property
    def worst_case(self) -> float | None:
        """US dollars until the end of the lease; None if unknown."""
        if self.hours_left == 0.0:
            return 0.0
        return None if self.per_hour is None or self.hours_left is None else self.per_hour * self.hours_left

    def as_json(self) -> dict[str, Any]:
        return {
            "reason": self.reason.value,
            "kind": self.ref.kind.value,
            "name": self.ref.name,
            "resourceGroup": self.ref.group,
            "cause": self.cause,
            "command": self.command,
            "powerState": self.power_state,
            "size": self.size or None,
            "pricePerHourUsd": self.per_hour,
            "perMonthUsd": self.per_month,
        }


@dataclass(frozen=True, slots=True)
class MissingMachine:
    """A spec without a machine."""

    name: str
    group: str
    file: str
    per_hour: float | None = None
    """US dollars per hour while it is on, at the spec's first place; None if unknown."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "resourceGroup": self.group,
            "spec": self.file,
            "pricePerHourUsd": self.per_hour,
        }


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How Azure and the specs of a workspace differ as a whole."""

    unmanaged: tuple[UnmanagedResource, ...] = ()
    missing: tuple[MissingMachine, ...] = ()


@dataclass(frozen=True, slots=True)
class Total:
    """A sum of prices in US dollars."""

    amount: float = 0.0
    is_complete: bool = True
    """Whether every price is known; otherwise it is a lower bound."""


def total(amounts: Sequence[float | None]) -> Total:
    """Return the sum of the known amounts."""
    return Total(sum(each or 0.0 for each in amounts), None not in amounts)


@dataclass(frozen=True, slots=True)
class Totals:
    """What all machines of a command cost, with those that have no spec and what is left of deleted ones."""

    machines: int
    now: Total
    """Per hour, for what is on."""
    on: Total
    """Per hour, if each machine of the specs is on."""
    worst: Total
    """If each machine that is on, or that its spec wants on, stays on until the end of its lease, from now on."""
    off: Total
    """Per month, for disks and public IPs while everything is off."""

    def as_json(self) -> dict[str, Any]:
        sums = {
            "perHourNowUsd": self.now,
            "perHourOnUsd": self.on,
            "worstCaseUsd": self.worst,
            "perMonthOffUsd": self.off,
        }
        return {
            **{name: round(each.amount, 4) for name, each in sums.items()},
            "complete": all(each.is_complete for each in sums.values()),
        }


@dataclass(frozen=True, slots=True)
class PlanReport:
    """The plans of a command, and what it found in addition to them."""

    plans: tuple[Plan, ...] = ()
    unmanaged: tuple[UnmanagedResource, ...] = ()
    totals: Totals | None = None
    """None for a single machine, unless a folder was given."""
    notes: tuple[str, ...] = ()
    simulated: bool = False

    @property
    def is_pending(self) -> bool:
        """Whether Azure differs from the specs in more than machines that are off as designed."""
        return any(plan.differs for plan in self.plans) or any(each.is_pending for each in self.unmanaged)


def totals_of(plans: Sequence[Plan], unmanaged: Sequence[UnmanagedResource], now: Sequence[float | None]) -> Totals:
    """Return the totals. `now` are the hourly prices of the specs' machines that are billed."""
    ours = [each for each in unmanaged if each.reason is not Reason.FOREIGN]
    without_spec = [each for each in ours if each.ref.kind is Kind.VM]
    billed = [each.per_hour for each in without_spec if each.power_state not in {"deallocated", "deallocating"}]
    there = [plan for plan in plans if plan.power_state or plan.wants_running]
    wanted = [plan for plan in plans if plan.wants_running]
    return Totals(
        machines=len(plans),
        now=total([*now, *billed]),
        on=total([plan.price.per_hour for plan in wanted]),
        worst=total([*(plan.worst_case for plan in wanted), *(each.worst_case for each in without_spec)]),
        off=total([*(plan.price.residue_per_month for plan in there), *(each.per_month for each in ours)]),
    )
