"""systemd's user manager: load units, and keep it running without a login."""

import getpass
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpuinfra.programs import find_program
from gpuinfra.scheduling.rendering import TIMER
from gpuinfra.scheduling.schedule import config_folder

SECONDS = 30
LINGERING = Path("/var/lib/systemd/linger")
RELOAD = ("systemctl", "--user", "daemon-reload")
# Not `enable --now`: a running timer would keep its old times.
START = (RELOAD, ("systemctl", "--user", "enable", TIMER), ("systemctl", "--user", "restart", TIMER))
STOP = (("systemctl", "--user", "disable", "--now", TIMER),)


@dataclass(frozen=True)
class SystemdResult:
    """What systemd did, and what is left to do."""

    active: bool
    left: tuple[str, ...] = ()
    """Commands that the user must run."""
    reason: str | None = None


def folder(environment: Mapping[str, str], home: Path) -> Path:
    """Return the folder of the user's units."""
    return config_folder(environment, home) / "systemd" / "user"


def start() -> SystemdResult:
    """Start the timer, now and after each boot."""
    linger = () if is_lingering() else ("loginctl enable-linger",)
    for number, command in enumerate(START):
        if reason := _refused(command):
            return SystemdResult(active=False, left=(*map(" ".join, START[number:]), *linger), reason=reason)
    return SystemdResult(active=True, left=linger)


def stop() -> SystemdResult:
    """Stop the timer, before its files are removed."""
    for command in STOP:
        if reason := _refused(command):
            return SystemdResult(active=True, left=(" ".join(command),), reason=reason)
    return SystemdResult(active=False)


def remove_links(units: Path) -> None:
    """Remove the timer's link after its files, and reload the manager."""
    (units / "timers.target.wants" / TIMER).unlink(missing_ok=True)
    _refused(RELOAD)


def is_lingering() -> bool:
    """Return whether this user's manager runs without a login."""
    try:
        return (LINGERING / getpass.getuser()).exists()
    except (OSError, KeyError):
        return False


def _refused(command: tuple[str, ...]) -> str | None:
    """Run a command, and return why it failed, or None."""
    program = find_program(command[0])
    if program is None:
        return f"`{command[0]}` is not installed"
    try:
        done = subprocess.run(  # noqa: S603 found just now
            [program, *command[1:]], capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"`{' '.join(command)}` did not answer for {SECONDS} s"
    return None if done.returncode == 0 else done.stderr.strip() or f"`{' '.join(command)}` failed"
