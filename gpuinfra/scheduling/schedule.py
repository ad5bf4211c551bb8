"""A schedule for `gpuinfra reap`: the interval, the command and its environment."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuinfra.programs import find_program

HOUR, DAY = 60, 24 * 60
# cron and systemd restart counting each hour or day, so only divisors of these give even intervals.
EVEN = (*(n for n in range(1, HOUR) if HOUR % n == 0), *(n * HOUR for n in range(1, 25) if 24 % n == 0))


@dataclass(frozen=True)
class Interval:
    """A number of minutes that divides an hour, or of hours that divides a day."""

    minutes: int

    def __post_init__(self) -> None:
        if self.minutes not in EVEN:
            raise ValueError(self.minutes)

    def __str__(self) -> str:
        if self.minutes == DAY:
            return "1d"
        return f"{self.minutes // HOUR}h" if self.minutes >= HOUR else f"{self.minutes}m"

    def cron(self, minute: int = 0) -> str:
        """Return the five fields of cron. The first run of an hour is at this minute, or earlier."""
        if self.minutes < HOUR:
            first = minute % self.minutes
            return f"{f'{first}-59' if first else '*'}/{self.minutes} * * * *"
        return f"{minute} {self._hours('*/')} * * *"

    def calendar(self) -> str:
        """Return the value of systemd's `OnCalendar=`."""
        if self.minutes < HOUR:
            return f"*-*-* *:0/{self.minutes}:00"
        return f"*-*-* {self._hours('0/')}:00:00"

    def _hours(self, step: str) -> str:
        hours = self.minutes // HOUR
        return {1: "*", 24: "0" if step == "*/" else "00"}.get(hours, f"{step}{hours}")


def nearest_interval(minutes: float) -> Interval:
    """Return the nearest allowed interval."""
    return Interval(min(EVEN, key=lambda even: (abs(even - minutes), even)))


# The default PATH of cron and systemd lacks some of these.
USUAL_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
# For the login of `az`, and the history of specs.
NEEDED = ("az", "git")


@dataclass(frozen=True)
class ReapSchedule:
    """When and how to run `gpuinfra reap`, for any scheduler."""

    every: Interval
    specs: str | None = None
    start: bool = False
    delete: bool = False
    grace: str | None = None
    sandbox: bool = False
    workspace: str | None = None
    """The workspace with the ledger and the records of runs."""
    program: tuple[str, ...] = ("gpuinfra",)
    """The command that starts gpuinfra, independent of PATH."""
    search_path: str = ""
    environment_file: str = ""
    package: str = ""
    """The requirement that pip installs on CI runners."""
    branch: str = ""
    connection: str = ""
    plan_connection: str = ""
    """The service connection for pull requests, which only reads."""

    @property
    def reap(self) -> tuple[str, ...]:
        """The `gpuinfra reap` command."""
        words = [*self.program, *(["--sandbox"] if self.sandbox else []), "reap"]
        words += ["--workspace", self.workspace] if self.workspace is not None else []
        words += ["--specs", self.specs, "--require-clean"] if self.specs is not None else []
        words += ["--start"] if self.start else []
        words += ["--delete"] if self.delete else []
        words += ["--grace", self.grace] if self.grace else []
        return (*words, "--json")


def own_program() -> tuple[str, ...]:
    """Return this program's full path: cron and systemd do not read shell startup files."""
    program = Path(sys.executable).with_name("gpuinfra")
    return (str(program),) if os.access(program, os.X_OK) else (sys.executable, "-m", "gpuinfra")


def search_path(program: tuple[str, ...]) -> str:
    """Return a PATH with all programs that gpuinfra calls."""
    found = [str(Path(program[0]).parent), *(str(Path(each).parent) for each in map(find_program, NEEDED) if each)]
    return ":".join(dict.fromkeys([*found, *USUAL_PATH]))


def environment_file(environment: Mapping[str, str], home: Path) -> Path:
    """Return the default file of variables for scheduled runs."""
    return config_folder(environment, home) / "gpuinfra" / "schedule.env"


def config_folder(environment: Mapping[str, str], home: Path) -> Path:
    """Return the user's configuration folder. The XDG specification ignores relative paths."""
    given = Path(environment.get("XDG_CONFIG_HOME") or "")
    return given if given.is_absolute() else home / ".config"
