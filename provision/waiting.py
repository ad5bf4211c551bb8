"""Wait with deadlines and report progress: interrupt, retry, and run steps in the order of their dependencies."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from gpuinfra.provision.errors import CloudError, Fault


@dataclass(frozen=True)
class Deadline:
    """A point in time on a monotonic clock."""

    at: float
    clock: Callable[[], float] = time.monotonic

    @classmethod
    def after(cls, seconds: float, clock: Callable[[], float] = time.monotonic) -> Deadline:
        """Return the deadline `seconds` from now."""
        return cls(clock() + seconds, clock)

    @property
    def left(self) -> float:
        """The seconds until the deadline, or 0 after it."""
        return max(0.0, self.at - self.clock())

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return self.clock() >= self.at

    def within(self, seconds: float) -> Deadline:
        """Return this deadline, or one `seconds` from now if that is earlier."""
        return Deadline(min(self.at, self.clock() + seconds), self.clock)


class Interrupt:
    """A flag that the user has interrupted the command."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._working: set[int] = set()
        self._abandoned: set[int] = set()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Mark this thread as a worker in this block, so that it does not continue after the main thread has left."""
        own = threading.get_ident()
        self._working.add(own)
        try:
            yield
        finally:
            self._working.discard(own)
            self._abandoned.discard(own)

    def set(self) -> None:
        """End every wait with Fault.INTERRUPTED."""
        self._event.set()

    def clear(self) -> None:
        """Allow waits again, to look at what is left.

        Workers that have not noticed the interrupt still stop, because Python waits for every thread at exit.
        """
        self._abandoned |= self._working
        self._event.clear()

    def check(self, subject: str = "") -> None:
        """Raise CloudError if the flag is set, or was set while this worker ran."""
        if self._event.is_set() or threading.get_ident() in self._abandoned:
            raise CloudError(Fault.INTERRUPTED, "Interrupted", "it continues in Azure", subject=subject)

    def sleep(self, seconds: float) -> None:
        """Sleep. Raise CloudError if interrupted."""
        self._event.wait(seconds)
        self.check()


Result = TypeVar("Result")
FIRST_PAUSE, MAX_PAUSE = 0.5, 5.0


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
        seconds = min(MAX_PAUSE, seconds * 1.5)


def wait_until(condition: Callable[[], bool], deadline: Deadline, pause: Callable[[float], None]) -> bool:
    """Return whether the condition became true before the deadline. An unreachable cloud counts as not yet."""
    seconds = FIRST_PAUSE
    while not _holds(condition):
        if deadline.left <= seconds:
            return False
        pause(seconds)
        seconds = min(MAX_PAUSE, seconds * 1.3)
    return True


def _holds(condition: Callable[[], bool]) -> bool:
    try:
        return condition()
    except CloudError as error:
        if error.fault is Fault.UNREACHABLE:
            return False
        raise


Name = TypeVar("Name")
WORKERS = 8
# After Ctrl-C, calls in progress may finish; otherwise it would be unknown what they created.
GRACE_SECONDS = 20.0


def run_steps(
    steps: Mapping[Name, Callable[[], None]], needs: Mapping[Name, Iterable[Name]], interrupt: Interrupt
) -> None:
    """Run each step once its dependencies are done. After the first failure, wait for running steps and raise.

    `needs` may name steps that are not in `steps`; they count as done. Ctrl-C starts no further step, ends all waits,
    lets calls in progress finish, and is raised.
    """
    waiting = {name: {need for need in needs.get(name, ()) if need in steps} for name in steps}
    running: dict[Future[None], Name] = {}
    executor = ThreadPoolExecutor(WORKERS, thread_name_prefix="step")
    try:
        while waiting or running:
            for name in [name for name, open_needs in waiting.items() if not open_needs]:
                del waiting[name]
                running[executor.submit(_work, steps[name], interrupt)] = name
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                future.result()
                finished = running.pop(future)
                for open_needs in waiting.values():
                    open_needs.discard(finished)
    except KeyboardInterrupt:
        interrupt.set()
        wait(running, timeout=GRACE_SECONDS)
        raise
    except BaseException:
        _finish(running, interrupt)
        raise
    finally:
        executor.shutdown(wait=False, cancel_futures=True)


def _work(step: Callable[[], None], interrupt: Interrupt) -> None:
    with interrupt.at_work():
        step()


def _finish(running: Mapping[Future[None], object], interrupt: Interrupt) -> None:
    """Wait for the other steps after a failure, because the cleanup must know everything that was created."""
    try:
        wait(running)
    except KeyboardInterrupt:
        interrupt.set()
        wait(running, timeout=GRACE_SECONDS)
        raise


class Progress(Protocol):
    """A receiver of progress reports, thread-safe. `step` is a line on the screen, such as `machine my-dsvm`."""

    def begin(self, step: str, doing: str) -> None:
        """Report the start of a step: `doing` is `creating`, `deleting`, `starting`, …."""

    def end(self, step: str, outcome: str) -> None:
        """Report the end of a step: `outcome` is `created`, `deleted`, …."""

    def fail(self, step: str, reason: str) -> None:
        """Report the failure of a step."""

    def wait(self, reason: str, seconds: float) -> None:
        """Report a wait that Azure requested."""

    def note(self, text: str) -> None:
        """Report a line of text."""


class Silent:
    """A Progress that ignores all reports."""

    def begin(self, step: str, doing: str) -> None:
        """Do nothing."""

    def end(self, step: str, outcome: str) -> None:
        """Do nothing."""

    def fail(self, step: str, reason: str) -> None:
        """Do nothing."""

    def wait(self, reason: str, seconds: float) -> None:
        """Do nothing."""

    def note(self, text: str) -> None:
        """Do nothing."""
