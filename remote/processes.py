"""Find and end the processes of a job that runs without a container."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

MARKER = "GPUINFRA_RUN_ID"
SET_CHILD_SUBREAPER = 36
PAUSE_SECONDS = 0.01
# A process that hangs in the kernel may outlive this.
END_SECONDS = 10.0


def adopt_orphans() -> bool:
    """Become the parent of descendants whose own parent ends. Return False if the system does not support it."""
    try:
        import ctypes  # some builds of Python do not have it

        return bool(ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def descendants(process: int, but: Sequence[int] = ()) -> list[int]:
    """Return the running descendants of a process, except those in these sessions."""
    known = {each.pid: each for each in _all() if not each.is_over}
    found: list[int] = []
    above = {process}
    while above:
        above = {pid for pid, each in known.items() if each.parent in above}
        found += above
    return [pid for pid in found if known[pid].session not in but]


def marked(run: str) -> list[int]:
    """Return this user's running processes that have the run's ID in their environment, except this process."""
    mark = f"{MARKER}={run}".encode()
    others = (each.pid for each in _all() if not each.is_over and each.pid != os.getpid())
    return [pid for pid in others if mark in _environment(pid)]


def reap(but: int) -> None:
    """Reap the children of this process that have ended, except one."""
    for each in _all():
        if each.parent == os.getpid() and each.is_over and each.pid != but:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(each.pid, os.WNOHANG)


def end(find: Callable[[], list[int]]) -> int:
    """Kill processes until `find` returns none, except those of other users. Return how many were killed."""
    ended: set[int] = set()
    refused: set[int] = set()
    ends = time.monotonic() + END_SECONDS
    while time.monotonic() < ends:
        left = set(find()) - refused
        if not left:
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
                ended.add(pid)
            except ProcessLookupError:
                pass
            except PermissionError:
                refused.add(pid)
        time.sleep(PAUSE_SECONDS)
    return len(ended)


class _Process(NamedTuple):
    pid: int
    parent: int
    session: int
    is_over: bool
    """Whether it has ended and waits to be reaped."""


def _all() -> Iterator[_Process]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError), open(f"/proc/{name}/stat", "rb") as file:
                state, parent, _group, session = file.read().rpartition(b")")[2].split()[:4]
                yield _Process(int(name), int(parent), int(session), state in {b"Z", b"X"})


def _environment(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return file.read().split(b"\0")
    return []
