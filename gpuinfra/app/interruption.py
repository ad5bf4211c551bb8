"""Ctrl-C: when it interrupts, and what there is afterwards, what is billed, and what to run."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import termios
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuinfra.app.frontend import Frontend
    from gpuinfra.app.machines import CloudSession

LOOK_SECONDS = 3.0
STREAMS = (0, 1, 2)
TOGETHER_SECONDS = 1.0
POSTPONE_TIMES, POSTPONE_SECONDS = 200, 0.01


class TerminalClosedError(KeyboardInterrupt):
    """The interrupt that a closed terminal, pipe or SSH session makes: the user did not ask to cancel a job."""


def say_what_exists(reached: CloudSession, name: str, group: str | None, progress: Frontend) -> None:
    """Look once more, and not for long: whoever pressed Ctrl-C wants to leave."""
    from gpuinfra.models.events import Interrupted
    from gpuinfra.provision.errors import CloudError
    from gpuinfra.provision.find import stops_at

    reached.cloud.interrupt.clear()
    reached.cloud.grant(LOOK_SECONDS)
    try:
        observed = reached.cloud.observe(name, group)
    except (CloudError, KeyboardInterrupt):
        observed = None
    resources = None if observed is None else [str(part.ref) for part in observed.ours()]
    stops = stops_at(observed) if observed else None
    progress.show(Interrupted(name, resources, stops, simulated=reached.cloud.simulated))


class Interrupts:
    """Raises KeyboardInterrupt, as Ctrl-C does; signals that come together are one, for a second leaves a machine on.

    When a terminal closes, shell and kernel each send SIGHUP. systemd ends a session by SIGTERM and SIGHUP, of which
    Python sees SIGHUP first. So SIGHUP is only ever the first interrupt, and what follows it closely is the same one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[int, float] | None = None

    def __call__(self, number: int, frame: FrameType | None, postponed: int = 0) -> None:
        """Handle one signal, a little later if paramiko may hold one of its locks."""
        if postponed < POSTPONE_TIMES and _may_hold_ssh_lock(frame):
            signal.signal(signal.SIGALRM, lambda _, later: self(number, later, postponed + 1))
            signal.setitimer(signal.ITIMER_REAL, POSTPONE_SECONDS)
            return
        now = self._clock()
        if self._first is None:
            self._first = (number, now)
        elif number == signal.SIGHUP or (self._first[0] == signal.SIGHUP and now - self._first[1] < TOGETHER_SECONDS):
            return
        if number == signal.SIGHUP:
            _leave_closed_terminal()
            raise TerminalClosedError
        signal.default_int_handler(number, frame)


def _may_hold_ssh_lock(frame: FrameType | None) -> bool:
    """Whether paramiko works in this frame, and does not just wait.

    paramiko takes its locks by `lock.acquire()` and a `try` after it. An exception raised between the two leaves the
    lock taken, and whatever is sent over that connection afterwards waits forever.
    """
    if frame is None or (frame.f_globals.get("__name__") == "threading" and frame.f_code.co_name == "wait"):
        return False
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if package in {"paramiko", "gpuinfra"}:
            return package == "paramiko"
        frame = frame.f_back
    return False


def _leave_closed_terminal() -> None:
    """Give up streams whose terminal is gone: to print there would fail, and end a teardown half-way."""
    for stream in STREAMS:
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_RDWR), stream)


@contextlib.contextmanager
def safe_interrupts() -> Iterator[None]:
    """Let Ctrl-C interrupt as usual, but never while paramiko may hold a lock: for callers with their own handlers."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or not is_usual:
        yield
        return
    alarm = signal.getsignal(signal.SIGALRM)
    signal.signal(signal.SIGINT, Interrupts())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGALRM, alarm)
