"""What `doctor` found: one check a thing that can be wrong."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """How bad it is, from nothing to what has to be mended."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    """Such as `login` or `lease`."""
    verdict: Verdict
    seen: str
    fix: str | None = None
    commands: tuple[str, ...] = ()
    """What to run to mend it, each whole, for whoever may."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "seen": self.seen,
            "fix": self.fix,
            "commands": list(self.commands),
        }


def ok(name: str, seen: str, fix: str | None = None) -> Check:
    """As it should be."""
    return Check(name, Verdict.OK, seen, fix)


def warning(name: str, seen: str, fix: str | None = None, *commands: str) -> Check:
    """Something less than there could be."""
    return Check(name, Verdict.WARNING, seen, fix, commands)


def problem(name: str, seen: str, fix: str | None = None, *commands: str) -> Check:
    """Something that has to be mended."""
    return Check(name, Verdict.PROBLEM, seen, fix, commands)


@dataclass(frozen=True, slots=True)
class MachineChecks:
    """What was found of one machine."""

    name: str
    group: str
    checks: tuple[Check, ...]

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"name": self.name, "resourceGroup": self.group, "checks": [each.as_json() for each in self.checks]}


@dataclass(frozen=True, slots=True)
class Examination:
    """All that was looked at."""

    checks: tuple[Check, ...]
    """Of this computer, the login and the subscription."""
    machines: tuple[MachineChecks, ...] = ()
    simulated: bool = False

    @property
    def verdict(self) -> Verdict:
        """The worst of all."""
        return worst((*self.checks, *(check for machine in self.machines for check in machine.checks)))

    def count(self, verdict: Verdict) -> int:
        """How many checks came out so."""
        found = [*self.checks, *(check for machine in self.machines for check in machine.checks)]
        return sum(check.verdict is verdict for check in found)

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "verdict": self.verdict.value,
            "checks": [check.as_json() for check in self.checks],
            "machines": [machine.as_json() for machine in self.machines],
            **({"simulated": True} if self.simulated else {}),
        }


def worst(checks: Iterable[Check]) -> Verdict:
    """The worst verdict; nothing that was looked at is nothing wrong."""
    return max((check.verdict for check in checks), key=list(Verdict).index, default=Verdict.OK)
