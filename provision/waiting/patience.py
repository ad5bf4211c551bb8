"""Retry requests while Azure is busy or unreachable."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.waiting.deadline import Deadline

Result = TypeVar("Result")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0


def patiently(
    attempt: Callable[[], Result],
    deadline: Deadline,
    pause: Callable[[float], None],
    *,
    unreachable_seconds: float = 0.0,
) -> Result:
    """Return the result of `attempt`. Retry BUSY until the deadline, UNREACHABLE for `unreachable_seconds`."""
    gone: Deadline | None = None
    seconds = FIRST_PAUSE
    while True:
        try:
            return attempt()
        except CloudError as error:
            is_gone = error.fault is Fault.UNREACHABLE
            gone = (gone or deadline.within(unreachable_seconds)) if is_gone else None
            end = {Fault.BUSY: deadline, Fault.UNREACHABLE: gone}.get(error.fault)
            if end is None or end.left <= seconds:
                raise
        pause(seconds)
        seconds = min(LONGEST_PAUSE, seconds * 1.5)


def until(condition: Callable[[], bool], deadline: Deadline, pause: Callable[[float], None]) -> bool:
    """Return whether the condition became true before the deadline. An unreachable cloud counts as not yet."""
    seconds = FIRST_PAUSE
    while not _holds(condition):
        if deadline.left <= seconds:
            return False
        pause(seconds)
        seconds = min(LONGEST_PAUSE, seconds * 1.3)
    return True


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except CloudError as error:
        if error.fault is Fault.UNREACHABLE:
            return False
        raise
