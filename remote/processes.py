"""Start a process in the background, and find and end the processes of a job without a container."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from gpuinfra.remote.wire import RefusedError

MARKER = "GPUINFRA_RUN_ID"
# On the user's own computer, this variable has the PATH for jobs: this process's own PATH excludes the project.
JOB_PATH = "GPUINFRA_JOB_PATH"
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


REPORT_SECONDS = 60.0


def run(work: Callable[..., None], keep: int) -> dict[str, Any]:
    """Start the work in a background process, in which only the file `keep` stays open, and return its report.

    The work gets a function with which it reports once. A report with a `code` raises RefusedError.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            _detach(work, keep, writing)
        finally:
            # Do not flush buffers or run handlers that belong to the parent.
            os._exit(1)
    os.close(writing)
    try:
        os.waitpid(child, 0)
        return _first_report(reading)
    finally:
        os.close(reading)


def _detach(work: Callable[..., None], keep: int, writing: int) -> None:
    os.setsid()
    if os.fork():
        os._exit(0)
    _close_all_but(keep, writing)
    for number in (signal.SIGINT, signal.SIGHUP):
        # A handler instead of SIG_IGN, which started programs would inherit.
        signal.signal(number, lambda *_: None)

    def report(value: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the caller may have ended
            os.write(writing, json.dumps(value).encode() + b"\n")
        os.close(writing)

    work(report)
    os._exit(0)


def _close_all_but(*kept: int) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _first_report(reading: int) -> dict[str, Any]:
    found, ends = b"", time.monotonic() + REPORT_SECONDS
    while not found.endswith(b"\n"):
        if not select.select([reading], [], [], max(0.0, ends - time.monotonic()))[0]:
            raise RefusedError("system", f"the job did not start within {REPORT_SECONDS:g} s")
        data = os.read(reading, 1 << 16)
        if not data:
            raise RefusedError("internal", "the job's supervisor ended before the job started")
        found += data
    report: dict[str, Any] = json.loads(found)
    if "code" in report:
        raise RefusedError(report["code"], report["message"])
    return report
