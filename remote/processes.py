"""Processes that a job without a container has started, however they were detached from it."""

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
# A process that hangs in the kernel ends when the kernel lets it.
END_SECONDS = 10.0


def adopt_orphans() -> bool:
    """Become the parent of every descendant whose own parent ends; False where the system has no such thing."""
    try:
        import ctypes  # a Python without it is possible

        return bool(ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


def descendants(process: int, but: Sequence[int] = ()) -> list[int]:
    """The children of a process that run, their children, and so on, but for those of these sessions."""
    known = {each.pid: each for each in _all() if not each.is_over}
    found: list[int] = []
    above = {process}
    while above:
        above = {pid for pid, each in known.items() if each.parent in above}
        found += above
    return [pid for pid in found if known[pid].session not in but]


def marked(run: str) -> list[int]:
    """The processes of this user that run and have the run's id in their environment, except this one."""
    mark = f"{MARKER}={run}".encode()
    others = (each.pid for each in _all() if not each.is_over and each.pid != os.getpid())
    return [pid for pid in others if mark in _environment(pid)]


def reap(but: int) -> None:
    """Bury the children of this process that have ended, but one."""
    for each in _all():
        if each.parent == os.getpid() and each.is_over and each.pid != but:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(each.pid, os.WNOHANG)


def end(find: Callable[[], list[int]]) -> int:
    """Kill the processes that are found until none is left; how many there were. Those of other users stay."""
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
    """Whether it has ended, and only waits to be reaped."""


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
