"""Refuse new jobs while a client deallocates the machine because nothing on it is needed.

The lock is held by a process of the machine, so it ends with the machine, or after a while if that stays on.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from gpuinfra.remote import home, processes
from gpuinfra.remote.wire import RefusedError

SECONDS = 5 * 60.0
LOCK = "closing"


def _open() -> int:
    return os.open(home.named(LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


@contextlib.contextmanager
def accepting_jobs() -> Iterator[None]:
    """Keep the machine from closing during the block. Raise RefusedError if it is closed."""
    lock = _open()
    try:
        if not home.try_lock(lock, shared=True):
            raise RefusedError("closing", "it is being switched off")
        yield
    finally:
        os.close(lock)


def close_if(is_unneeded: Callable[[], bool]) -> bool:
    """Refuse new jobs from now on if this holds while no job is being started, and return whether they are refused."""
    lock = _open()
    try:
        if not home.try_lock(lock) or not is_unneeded():
            return False
        processes.run(_hold, lock)
        return True
    finally:
        os.close(lock)


def _hold(report: Callable[[dict[str, Any]], None]) -> None:
    report({})
    time.sleep(SECONDS)
