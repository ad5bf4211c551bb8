"""Work beside the main thread, which stays free to hear Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def begin(call: Callable[[], T], name: str) -> Future[T]:
    """Call it in a thread that nobody has to wait for, not even Python at its end."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001, RUF100 it is raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
