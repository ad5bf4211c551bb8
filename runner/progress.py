"""The port for progress reports, and work in a thread that may be abandoned."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Protocol, TypeVar


class Progress(Protocol):
    """Receives the steps of a task; each `step` is one line on the screen. Calls may come from any thread."""

    def begin(self, step: str, doing: str) -> None:
        """Start a step, or change what it is doing."""

    def amount(self, step: str, done: int, total: int | None) -> None:
        """Report how many bytes of a step are done, and the total if known. Cheap enough to call often."""

    def end(self, step: str, outcome: str) -> None:
        """Report that a step succeeded."""

    def fail(self, step: str, reason: str) -> None:
        """Report that a step failed."""

    def note(self, text: str) -> None:
        """Print a line that stays on the screen."""


class Silent:
    """Ignores all reports, for work whose steps another task reports."""

    def begin(self, step: str, doing: str) -> None:
        pass

    def amount(self, step: str, done: int, total: int | None) -> None:
        pass

    def end(self, step: str, outcome: str) -> None:
        pass

    def fail(self, step: str, reason: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass


def counted(count: int, noun: str) -> str:
    """Return `1 file` or `2 files`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


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
