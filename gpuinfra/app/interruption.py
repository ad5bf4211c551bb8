"""Handle signals: when Ctrl-C and a closed terminal interrupt, and the defaults for programs that are started."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

STREAMS = (0, 1, 2)
TOGETHER_SECONDS = 1.0
POSTPONE_TIMES, POSTPONE_SECONDS = 200, 0.01
PACKAGE = "gpuinfra"
WAKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
WAKE_TIMES, WAKE_SECONDS = 20, 0.05
CLOSE_SECONDS = 2.0
INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# They acquire locks with `lock.acquire()` before a `try`.
LOCKING = frozenset({"logging", "paramiko"})


class TerminalClosedError(KeyboardInterrupt):
    """The interrupt caused by a closed terminal, pipe or SSH session: the user did not ask to cancel a job."""


class Interrupts:
    """A signal handler that raises KeyboardInterrupt like Ctrl-C, but not while a library works.

    Libraries acquire locks just before the `try` that releases them; so do Python's own `threading` and `logging`. An
    exception between the two leaves the lock held, and the next thread that needs it waits forever. So the exception is
    raised only in our own code, or while other code waits and acquires nothing. Until then it is postponed.

    Signals that arrive together count as one, because a second interrupt would leave a machine on. When a terminal
    closes, shell and kernel each send SIGHUP. systemd ends a session with SIGTERM and SIGHUP, of which Python handles
    SIGHUP first. So SIGHUP is only ever the first interrupt, and a signal closely after it counts as the same one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._first: tuple[int, float] | None = None
        self._postponed: int | None = None
        self._looks = 0
        self._seen: tuple[FrameType, int] | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle one signal, now or a little later."""
        if is_safe(frame):
            self._interrupt(number)
            return
        self._postponed, self._looks, self._seen = number, 0, None
        signal.signal(signal.SIGALRM, self._look)
        # Repeat the alarm: a signal just before a wait begins does not end that wait.
        signal.setitimer(signal.ITIMER_REAL, POSTPONE_SECONDS, POSTPONE_SECONDS)

    def _look(self, _: int, frame: FrameType | None) -> None:
        """Raise the postponed interrupt if that is safe. Code at the same instruction as at the last look waits."""
        number = self._postponed
        if number is None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            return
        self._looks += 1
        place = (frame, frame.f_lasti) if frame and may_wait(frame) else None
        if is_safe(frame) or (place and place == self._seen) or self._looks >= POSTPONE_TIMES:
            self._interrupt(number)
        else:
            self._seen = place

    def cancel(self) -> bool:
        """Drop a postponed interrupt, and return whether there was one."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        was_postponed, self._postponed, self._seen = self._postponed is not None, None, None
        return was_postponed

    def _interrupt(self, number: int) -> None:
        self.cancel()
        now = self._clock()
        if self._first is None:
            self._first = (number, now)
        elif number == signal.SIGHUP or (self._first[0] == signal.SIGHUP and now - self._first[1] < TOGETHER_SECONDS):
            return
        if number == signal.SIGHUP:
            _leave_closed_terminal()
            raise TerminalClosedError
        raise KeyboardInterrupt


def is_safe(frame: FrameType | None) -> bool:
    """Return whether this is our own code, or a wait in `threading` that released its lock and will reacquire it."""
    if frame is None:
        return True
    module = _module(frame)
    if module == "threading":
        return frame.f_code.co_name == "wait" and "gotit" in frame.f_locals
    return module.partition(".")[0] == PACKAGE and module != __name__


def may_wait(frame: FrameType) -> bool:
    """Return whether this code acquires nothing while it stays here. Another handler may run on top of any code."""
    if _module(frame) == __name__:
        return False
    each: FrameType | None = frame
    while each is not None:
        package = _module(each).partition(".")[0]
        if package in LOCKING or package == PACKAGE:
            return package == PACKAGE
        each = each.f_back
    return True


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__"))


def _leave_closed_terminal() -> None:
    """Redirect streams whose terminal is gone: printing to them would fail and abort a teardown."""
    for stream in STREAMS:
        try:
            termios.tcgetattr(stream)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                os.dup2(os.open(os.devnull, os.O_RDWR), stream)


@contextlib.contextmanager
def safe_interrupts() -> Iterator[None]:
    """Let Ctrl-C interrupt only where it is safe. For callers with their own handlers, do nothing."""
    is_usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or not is_usual:
        yield
        return
    alarm, interrupts = signal.getsignal(signal.SIGALRM), Interrupts()
    signal.signal(signal.SIGINT, interrupts)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupts.cancel():
            signal.raise_signal(signal.SIGINT)
        signal.signal(signal.SIGALRM, alarm)


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
    changed = (*INTERRUPTING, signal.SIGQUIT, signal.SIGCHLD, signal.SIGALRM, signal.SIGURG)
    before = {number: handler for number in changed if (handler := signal.getsignal(number)) is not None}
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupts)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, interrupts)
    if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
        # Programs inherit what is ignored, but not what has a handler that does nothing.
        signal.signal(signal.SIGQUIT, _do_nothing)
    # A parent can leave signals blocked, too, and then none of them arrives.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, changed)
    # Where it is ignored, the exit codes of children are lost, and Python takes each for a success.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    waker = MainThreadWaker()
    try:
        yield
    finally:
        interrupts.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)
        waker.close()


def restore_signals() -> None:
    """Undo what Python ignores, before another program takes the place of this one."""
    # A timer survives that, and its signal would end the other program.
    signal.setitimer(signal.ITIMER_REAL, 0)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)


def let_signals_end() -> None:
    """Let a signal end the program at once, before and after its command: then there is nothing to clear up."""
    for number in INTERRUPTING:
        if signal.getsignal(number) is not signal.SIG_IGN:
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
        self._thread.join(CLOSE_SECONDS)
        if not self._thread.is_alive():  # otherwise a child has the other end, too, and the number is in use
            os.close(self._received)

    def _run(self) -> None:
        while numbers := os.read(self._received, 64):
            if any(number in WAKING for number in numbers):
                # More than once: the main thread may not wait yet.
                for _ in range(WAKE_TIMES):
                    signal.pthread_kill(self._main, signal.SIGURG)
                    if self._closed.wait(WAKE_SECONDS):
                        break


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    return


def leave_closed_streams() -> None:
    """Drop standard streams that are no longer read, as in `gpuinfra run … | head`; the log has the output."""
    # Otherwise every flush would try to write the buffered text again.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in [each for each in (sys.stdout, sys.stderr) if _is_closed(each.fileno())] or [sys.stdout]:
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _is_closed(number: int) -> bool:
    poll = select.poll()
    poll.register(number, select.POLLOUT)
    return any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0))
