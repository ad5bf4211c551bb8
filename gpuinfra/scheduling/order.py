"""What is to be run, how often, and with what around it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuinfra.programs import find_program
from gpuinfra.scheduling.interval import Interval

# Where Debian's cron and systemd would not look by themselves, all of them.
USUAL_PATH = ("/usr/local/bin", "/usr/bin", "/bin")
# The login of `az`, and the history of specs.
NEEDED = ("az", "git")


@dataclass(frozen=True)
class Order:
    """One wish, whoever is to fulfil it."""

    every: Interval
    specs: str | None = None
    start: bool = False
    delete: bool = False
    grace: str | None = None
    sandbox: bool = False
    workspace: str | None = None
    """Where it is remembered what was ended, and whose outputs are waited for."""
    program: tuple[str, ...] = ("gpuinfra",)
    """The words that start this program, whatever PATH is."""
    search_path: str = ""
    environment_file: str = ""
    package: str = ""
    """What pip installs where the program is not there already."""
    branch: str = ""
    connection: str = ""

    @property
    def reap(self) -> tuple[str, ...]:
        """The command that ends what is over."""
        words = [*self.program, *(["--sandbox"] if self.sandbox else []), "reap"]
        words += ["--workspace", self.workspace] if self.workspace is not None else []
        words += ["--specs", self.specs] if self.specs is not None else []
        words += ["--start"] if self.start else []
        words += ["--delete"] if self.delete else []
        words += ["--grace", self.grace] if self.grace else []
        return (*words, "--json")


def own_program() -> tuple[str, ...]:
    """This very program by its full path: neither cron nor systemd reads what a shell sets up."""
    beside = Path(sys.executable).with_name("gpuinfra")
    return (str(beside),) if os.access(beside, os.X_OK) else (sys.executable, "-m", "gpuinfra")


def search_path(program: tuple[str, ...]) -> str:
    """A PATH that has what the program calls."""
    found = [str(Path(program[0]).parent), *(str(Path(each).parent) for each in map(find_program, NEEDED) if each)]
    return ":".join(dict.fromkeys([*found, *USUAL_PATH]))


def environment_file(environment: Mapping[str, str], home: Path) -> Path:
    """Where variables for runs by themselves are looked for, if nothing else is said."""
    return config_folder(environment, home) / "gpuinfra" / "schedule.env"


def config_folder(environment: Mapping[str, str], home: Path) -> Path:
    """A user's settings; a relative path is to be ignored, says the XDG specification."""
    given = Path(environment.get("XDG_CONFIG_HOME") or "")
    return given if given.is_absolute() else home / ".config"
