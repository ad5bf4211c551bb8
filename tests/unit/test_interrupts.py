"""Ctrl-C stays Ctrl-C, whatever it interrupts, and signals in quick succession are one interrupt."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest

from gpuinfra.app.interruption import TOGETHER_SECONDS, Interrupts
from gpuinfra.runner.connection.handshake import connect_errors
from gpuinfra.runner.docker.client import Engine
from gpuinfra.runner.errors import Broken


def interrupted_twice() -> None:
    """As in a wait of paramiko whose lock was released, and not acquired again because of a second Ctrl-C."""
    lock = threading.Lock()
    with lock:
        lock.release()
        raise KeyboardInterrupt


def test_interrupt_that_another_exception_replaced_is_an_interrupt() -> None:
    with pytest.raises(RuntimeError, match="release"):
        interrupted_twice()
    with pytest.raises(KeyboardInterrupt), connect_errors("the connection is lost"):
        interrupted_twice()
    with pytest.raises(KeyboardInterrupt), Engine.translated(Mock(), "asking"):
        interrupted_twice()


def test_connection_lost_after_an_interrupt_is_not_a_second_interrupt() -> None:
    def lose() -> None:
        try:
            signal.default_int_handler(signal.SIGINT, None)
        except KeyboardInterrupt:
            with connect_errors("the connection is lost", is_open=True):
                Path("/nowhere").read_bytes()

    with pytest.raises(Broken):
        lose()


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([signal.SIGINT, signal.SIGINT], [True, True]),
        ([signal.SIGTERM, signal.SIGINT], [True, True]),
        ([signal.SIGHUP, signal.SIGHUP], [True, False]),
        ([signal.SIGTERM, signal.SIGHUP], [True, False]),
        ([signal.SIGHUP, signal.SIGTERM], [True, False]),
    ],
)
def test_signals_in_quick_succession_are_one_interrupt(numbers: list[signal.Signals], expected: list[bool]) -> None:
    interrupts = Interrupts()
    assert [raises(partial(interrupts, number, None)) for number in numbers] == expected


def test_signal_long_after_a_closed_terminal_is_a_second_interrupt() -> None:
    interrupts = Interrupts(clock=iter([0.0, TOGETHER_SECONDS + 1]).__next__)
    assert raises(lambda: interrupts(signal.SIGHUP, None))
    assert raises(lambda: interrupts(signal.SIGTERM, None))


def raises(call: Callable[[], None]) -> bool:
    try:
        call()
    except KeyboardInterrupt:
        return True
    return False


PROGRAM = """
import logging, os, signal, threading, time
from gpuinfra.app.interruption import Interrupts
signal.signal(signal.SIGINT, Interrupts())

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

class Lock:
    # Ctrl-C comes when this lock is taken, and before the `try` that releases it begins.
    def __init__(self, lock):
        self.lock, self.is_armed = lock, True
    def acquire(self, *values):
        is_taken = self.lock.acquire(*values)
        if self.is_armed:
            self.is_armed = False
            interrupt()
        return is_taken
    def release(self):
        self.lock.release()
    def __enter__(self):
        return self.acquire()
    def __exit__(self, *_):
        self.release()

def is_free(lock):
    # By another thread: some locks let the thread that has them take them again.
    tried = threading.Thread(target=lambda: (lock.acquire(), lock.release()), daemon=True)
    tried.start()
    tried.join(5)
    return not tried.is_alive()

def module(name, source):
    names = {"__name__": name}
    exec(source, names)
    return names

try:
CALLS
except KeyboardInterrupt:
    print("interrupted", is_free(lock))
"""

PARAMIKO = """
    library = module("paramiko.transport", '''
import threading, time
lock, event = threading.Lock(), threading.Event()
def send(interrupt):
    lock.acquire()
    interrupt()
    for _ in range(20):
        time.sleep(0.005)
    lock.release()
    event.wait(60)
def receive(interrupt):
    threading.Timer(0.2, interrupt).start()
    event.wait(60)
''')
    lock = library["lock"]
"""
INTERRUPTED_CALLS = {
    "paramiko-sends": f"{PARAMIKO}    library['send'](interrupt)",
    "paramiko-waits": f"{PARAMIKO}    library['receive'](interrupt)",
    "logging": """
    lock = logging._lock = Lock(logging._lock)
    logging.getLogger("example")
    time.sleep(60)
""",
    "event": """
    lock = threading.Lock()
    event = threading.Event()
    event._cond = threading.Condition(Lock(lock))
    event.wait(60)
""",
    "another-handler": """
    lock = threading.Lock()
    handler = module("gpuinfra.app.interruption", '''
def handle(interrupt):
    interrupt()
''')["handle"]
    signal.signal(signal.SIGURG, lambda *_: handler(interrupt))
    lock.acquire()
    signal.raise_signal(signal.SIGURG)
    lock.release()
    time.sleep(60)
""",
    "a-library-waits": """
    lock = threading.Lock()
    library = module("requests.sessions", '''
import time
def wait():
    time.sleep(60)
''')
    threading.Timer(0.2, interrupt).start()
    library["wait"]()
""",
}


@pytest.mark.parametrize("calls", INTERRUPTED_CALLS.values(), ids=INTERRUPTED_CALLS)
def test_an_interrupt_leaves_no_lock_taken_and_ends_every_wait(calls: str) -> None:
    # In a separate program: the tests use SIGALRM themselves.
    command = [sys.executable, "-c", PROGRAM.replace("CALLS", calls)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert (ended.stdout, ended.stderr) == ("interrupted True\n", "")
