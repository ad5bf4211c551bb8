"""Retry requests while Azure is busy or unreachable."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import TypeVar

from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.waiting.deadline import Deadline

Result = TypeVar("Result")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0


def retry(
    attempt: Callable[[], Result],
    deadline: Deadline,
    pause: Callable[[float], None],
    *,
    unreachable_seconds: float = 0.0,
    busy_codes: Container[str] = (),
) -> Result:
    """Return the result of `attempt`, with back-off between attempts.

    Retry BUSY and errors with one of `busy_codes` until the deadline, UNREACHABLE for `unreachable_seconds`.
    """
    gone: Deadline | None = None
    seconds = FIRST_PAUSE
    while True:
        try:
            return attempt()
        except CloudError as error:
            is_gone = error.fault is Fault.UNREACHABLE
            gone = (gone or deadline.within(unreachable_seconds)) if is_gone else None
            end = deadline if error.fault is Fault.BUSY or error.code in busy_codes else gone
            if end is None or end.left <= seconds:
                raise
        pause(seconds)
        seconds = min(LONGEST_PAUSE, seconds * 1.5)


def wait_until(condition: Callable[[], bool], deadline: Deadline, pause: Callable[[float], None]) -> bool:
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
