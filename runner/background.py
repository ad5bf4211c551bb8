"""Calls in threads of their own: the main thread stays free for Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import TypeVar, cast

T = TypeVar("T")


def begin(call: Callable[[], T], name: str) -> Future[T]:
    """Call it in a daemon thread, which does not delay the end of the program."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001, RUF100 it is raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return or raise what the call does, or raise TimeoutError. A call that is late delays nothing."""
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
