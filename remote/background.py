"""Run work in a background process that outlives the call that starts it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from gpuinfra.remote.wire import RefusedError

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
