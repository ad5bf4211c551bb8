"""The machine itself: its programs, its boot, and small files that others may write as well."""

from __future__ import annotations

import contextlib
import email.utils
import json
import os
import stat
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

PROGRAM_SECONDS, KILL_SECONDS = 5.0, 1.0
MAX_FILE = 64 * 1024


class Program:
    """A program that is run repeatedly. If it hangs, it is not run again before it ends."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        self._hung: subprocess.Popen[bytes] | None = None

    def ask(self) -> str | None:
        """Return its output, or None if it is missing, fails or hangs."""
        if self._hung is not None and self._hung.poll() is None:
            return None
        self._hung = None
        null = subprocess.DEVNULL
        try:
            child = subprocess.Popen(self._words, stdin=null, stdout=subprocess.PIPE, stderr=null)  # noqa: S603 constant
        except OSError:
            return None
        try:
            output, _ = child.communicate(timeout=PROGRAM_SECONDS)
        except subprocess.TimeoutExpired:
            self._give_up(child)
            return None
        return output.decode("utf-8", "replace") if child.returncode == 0 else None

    def _give_up(self, child: subprocess.Popen[bytes]) -> None:
        """Kill the child without a long wait, because a stuck driver can prevent its end."""
        child.kill()
        if child.stdout:
            child.stdout.close()
        try:
            child.wait(KILL_SECONDS)
        except subprocess.TimeoutExpired:
            self._hung = child


def read_utilization(output: str) -> int | None:
    """Return the utilization of the busiest GPU in percent, or None if there is no number."""
    numbers = [int(line) for line in output.split() if line.isdecimal()]
    return max(numbers) if numbers else None


def read_file(path: str) -> str | None:
    """Return the text of a small regular file, or None for anything else, such as a pipe in a user's folder."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return None
        return os.read(file, MAX_FILE).decode("utf-8", "replace")
    except OSError:
        return None
    finally:
        os.close(file)


def read_object(path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None."""
    try:
        found = json.loads(read_file(path) or "")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def write_json(path: str, value: Any) -> None:
    """Write JSON atomically: a reader sees the old or the new content, never a part."""
    new = f"{path}.{os.getpid()}.new"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(new, flags, 0o644), "wb") as output:
            os.fchmod(output.fileno(), 0o644)
            output.write(json.dumps(value).encode() + b"\n")
        os.replace(new, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise


def age_of(path: str) -> float | None:
    """Return the seconds since a file's last change by the guest's clock, or None if it is missing."""
    try:
        return time.time() - os.lstat(path).st_mtime
    except OSError:
        return None


def booted_at(run: str) -> float:
    """Return when this boot began by the guest's clock: the kernel's time, or that of the oldest file in `/run`."""
    moments = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        moments.append(time.time() - float((read_file("/proc/uptime") or "").split()[0]))
    with contextlib.suppress(OSError):
        parent = os.path.dirname(os.path.abspath(run))
        moments.append(min(os.lstat(os.path.join(parent, name)).st_mtime for name in os.listdir(parent)))
    return max(moments) if moments else time.time()


class Clock:
    """Azure's time, from its responses; the guest's time before the first one."""

    def __init__(self) -> None:
        self._responses: deque[tuple[float, float]] = deque(maxlen=20)

    def note(self, date: str | None) -> None:
        """Note a response's `Date`."""
        parsed = email.utils.parsedate_tz(date) if date else None
        if parsed:
            self._responses.append((time.monotonic(), float(email.utils.mktime_tz(parsed))))

    @property
    def is_set(self) -> bool:
        """Return whether a response was received."""
        return bool(self._responses)

    def now(self) -> float:
        """Return seconds since 1970."""
        if not self._responses:
            return time.time()
        at, moment = self._responses[-1]
        return moment + (time.monotonic() - at)

    def rate(self) -> float:
        """Return Azure's seconds per second of the guest."""
        if len(self._responses) < 2:
            return 1.0
        (first, before), (last, after) = self._responses[0], self._responses[-1]
        # Responses have whole seconds.
        return max(1.0, (after - before - 1.0) / max(last - first, 0.05))


def guest_seconds(seconds: float, rate: float, at_least: float = 0.0) -> float:
    """Convert seconds of Azure's clock to seconds of the guest's."""
    return max(at_least, seconds / rate)
