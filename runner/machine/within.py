"""A deadline for calls that have none of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

T = TypeVar("T")


def within(seconds: float, call: Callable[[], T]) -> T:
    """What the call gives or raises, or TimeoutError. One that is late is left to itself, and holds up nobody."""
    answers: SimpleQueue[tuple[T | None, Exception | None]] = SimpleQueue()

    def run() -> None:
        try:
            answers.put((call(), None))
        except Exception as error:  # noqa: BLE001, RUF100 it is raised where it is waited for
            answers.put((None, error))

    # No pool: Python waits for a pool's threads before it ends.
    threading.Thread(target=run, name="within", daemon=True).start()
    try:
        value, error = answers.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"no answer within {seconds:g} s") from None
    if error:
        raise error
    return cast("T", value)
