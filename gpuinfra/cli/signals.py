"""Signal handling: what interrupts the program, and the defaults for programs that it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from gpuinfra.app.interruption import Interrupts

WAKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)
WAKE_TIMES, WAKE_SECONDS = 20, 0.05
CLOSE_SECONDS = 2.0
INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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
