"""Run calls in daemon threads, so that the main thread can handle Ctrl-C and the program can end at any time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

T = TypeVar("T")


def in_thread(call: Callable[[], T], name: str) -> Future[T]:
    """Start the call in a daemon thread and return its future. Python would wait for an executor's threads at exit."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001, RUF100 raised where the result is read
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the call's result, or raise TimeoutError after `seconds` and leave the call running."""
    future = in_thread(call, "within")
    if not wait([future], seconds).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return future.result()
