"""The checks of `gpuinfra doctor` and their results."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class CheckStatus(StrEnum):
    """The result of a check, from good to bad."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One check: what was found, and how to fix it."""

    name: str
    """Such as `login` or `lease`."""
    verdict: CheckStatus
    seen: str
    fix: str | None = None
    commands: tuple[str, ...] = ()
    """Complete commands that fix the problem."""

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "seen": self.seen,
            "fix": self.fix,
            "commands": list(self.commands),
        }


def ok(name: str, seen: str, fix: str | None = None) -> HealthCheck:
    """Return a passed check."""
    return HealthCheck(name, CheckStatus.OK, seen, fix)


def warning(name: str, seen: str, fix: str | None = None, *commands: str) -> HealthCheck:
    """Return a check with a warning."""
    return HealthCheck(name, CheckStatus.WARNING, seen, fix, commands)


def problem(name: str, seen: str, fix: str | None = None, *commands: str) -> HealthCheck:
    """Return a failed check."""
    return HealthCheck(name, CheckStatus.PROBLEM, seen, fix, commands)


@dataclass(frozen=True, slots=True)
class MachineHealth:
    """The checks of one machine."""

    name: str
    group: str
    checks: tuple[HealthCheck, ...]

    def as_json(self) -> dict[str, Any]:
        return {"name": self.name, "resourceGroup": self.group, "checks": [each.as_json() for each in self.checks]}


@dataclass(frozen=True, slots=True)
class HealthReport:
    """All checks: the account's and each machine's."""

    checks: tuple[HealthCheck, ...]
    """Checks of this computer, the login and the subscription."""
    machines: tuple[MachineHealth, ...] = ()
    simulated: bool = False

    @property
    def verdict(self) -> CheckStatus:
        """The worst status of all checks."""
        return worst((*self.checks, *(check for machine in self.machines for check in machine.checks)))

    def count(self, verdict: CheckStatus) -> int:
        found = [*self.checks, *(check for machine in self.machines for check in machine.checks)]
        return sum(check.verdict is verdict for check in found)

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict.value,
            "checks": [check.as_json() for check in self.checks],
            "machines": [machine.as_json() for machine in self.machines],
            **({"simulated": True} if self.simulated else {}),
        }


def worst(checks: Iterable[HealthCheck]) -> CheckStatus:
    """Return the worst status; OK without checks."""
    return max((check.verdict for check in checks), key=list(CheckStatus).index, default=CheckStatus.OK)
