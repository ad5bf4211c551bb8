"""The signals that interrupt the program, and those that the programs it starts begin with."""

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

from gpuinfra.app.interruption import TerminalClosedError

WAKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
WAKE_TIMES, WAKE_SECONDS = 20, 0.05
STREAMS = (0, 1, 2)
TOGETHER_SECONDS = 1.0
POSTPONE_TIMES, POSTPONE_SECONDS = 200, 0.01


@contextlib.contextmanager
def handled_signals() -> Iterator[None]:
    """Let SIGINT, SIGTERM and a closed terminal interrupt; what is started from here begins with default signals.

    A shell without job control starts `gpuinfra … &` with SIGINT and SIGQUIT ignored, and Python leaves it at that: a
    `run` that `kill -INT` cannot end is a machine that stays on. An ignored SIGHUP is what `nohup` asks for, and stays.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupts = Interrupts()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupts)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, interrupts)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        # Programs inherit what is ignored, but not what has a handler that does nothing.
        signal.signal(signal.SIGQUIT, _do_nothing)
    # Where it is ignored, the exit codes of children are lost, and Python takes each for a success.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    waker = MainThreadWaker()
    try:
        yield
    finally:
        waker.close()


def restore_signals() -> None:
    """Undo what Python ignores, before another program takes the place of this one."""
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


class MainThreadWaker:
    """Interrupts the main thread when a signal arrives, however it waits.

    Python runs signal handlers in the main thread, between two instructions. A signal that arrives just before a wait
    for a lock begins, or in another thread, does not end that wait: Ctrl-C would have no effect until the wait is over.
    """

    def __init__(self) -> None:
        self._main, self._closed = threading.get_ident(), threading.Event()
        self._received, self._sent = os.pipe()
        os.set_blocking(self._sent, False)
        signal.signal(signal.SIGURG, _do_nothing)
        self._before = signal.set_wakeup_fd(self._sent, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        signal.set_wakeup_fd(self._before)
        self._closed.set()
        os.close(self._sent)
        self._thread.join()
        os.close(self._received)

    def _run(self) -> None:
        while numbers := os.read(self._received, 64):
            if any(number in WAKING for number in numbers):
                # More than once: the main thread may not wait yet.
                for _ in range(WAKE_TIMES):
                    signal.pthread_kill(self._main, signal.SIGURG)
                    if self._closed.wait(WAKE_SECONDS):
                        break


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


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    return
