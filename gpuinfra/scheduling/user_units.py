"""systemd's manager of this user: it has to be told of units, and to go on when nobody is logged in."""

from __future__ import annotations

import getpass
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuinfra.programs import find_program
from gpuinfra.scheduling.order import config_folder
from gpuinfra.scheduling.rendering import TIMER

SECONDS = 30
LINGERING = Path("/var/lib/systemd/linger")
RELOAD = ("systemctl", "--user", "daemon-reload")
# Not `enable --now`: a timer that runs already would keep its old times.
START = (RELOAD, ("systemctl", "--user", "enable", TIMER), ("systemctl", "--user", "restart", TIMER))
STOP = (("systemctl", "--user", "disable", "--now", TIMER),)


@dataclass(frozen=True)
class Told:
    """How far it came."""

    active: bool
    left: tuple[str, ...] = ()
    """Commands that are left to do."""
    reason: str | None = None


def folder(environment: Mapping[str, str], home: Path) -> Path:
    """Where a user's units are."""
    return config_folder(environment, home) / "systemd" / "user"


def start() -> Told:
    """Let the timer run, now and after each boot."""
    linger = () if is_lingering() else ("loginctl enable-linger",)
    for number, command in enumerate(START):
        if reason := _refused(command):
            return Told(active=False, left=(*map(" ".join, START[number:]), *linger), reason=reason)
    return Told(active=True, left=linger)


def stop() -> Told:
    """Let it run no more, before its files go."""
    for command in STOP:
        if reason := _refused(command):
            return Told(active=True, left=(" ".join(command),), reason=reason)
    return Told(active=False)


def forget(units: Path) -> None:
    """After the files have gone: the link that had it started, and what the manager remembers."""
    (units / "timers.target.wants" / TIMER).unlink(missing_ok=True)
    _refused(RELOAD)


def is_lingering() -> bool:
    """Whether this user's manager runs while nobody is logged in."""
    try:
        return (LINGERING / getpass.getuser()).exists()
    except (OSError, KeyError):
        return False


def _refused(command: tuple[str, ...]) -> str | None:
    """Why it did not work, or None."""
    program = find_program(command[0])
    if program is None:
        return f"there is no `{command[0]}` on this computer"
    try:
        done = subprocess.run(  # noqa: S603 found just now
            [program, *command[1:]], capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"`{' '.join(command)}` did not answer for {SECONDS} s"
    return None if done.returncode == 0 else done.stderr.strip() or f"`{' '.join(command)}` failed"
