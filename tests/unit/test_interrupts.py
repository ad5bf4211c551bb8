"""Ctrl-C stays Ctrl-C, whatever waits when it comes; and signals that come together are one."""

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
from gpuinfra.runner.engine.client import Engine
from gpuinfra.runner.machine.connection import Broken
from gpuinfra.runner.machine.handshake import translated


def interrupted_twice() -> None:
    """As in a wait of paramiko's whose lock was let go, and not taken back because of a second Ctrl-C."""
    lock = threading.Lock()
    with lock:
        lock.release()
        raise KeyboardInterrupt


def test_interrupt_that_another_exception_replaced_is_an_interrupt() -> None:
    with pytest.raises(RuntimeError, match="release"):
        interrupted_twice()
    with pytest.raises(KeyboardInterrupt), translated("the connection is lost"):
        interrupted_twice()
    with pytest.raises(KeyboardInterrupt), Engine.translated(Mock(), "asking"):
        interrupted_twice()


def test_connection_lost_after_an_interrupt_is_no_second_interrupt() -> None:
    def lose() -> None:
        try:
            signal.default_int_handler(signal.SIGINT, None)
        except KeyboardInterrupt:
            with translated("the connection is lost", is_open=True):
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
def test_signals_of_one_end_are_one_interrupt(numbers: list[signal.Signals], expected: list[bool]) -> None:
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


IN_PARAMIKO = """
import os, signal, threading, time
from gpuinfra.app.interruption import Interrupts
signal.signal(signal.SIGINT, Interrupts())
LIBRARY = '''
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
'''
library = {"__name__": "paramiko.transport"}
exec(LIBRARY, library)
begun = time.monotonic()
try:
    library["%s"](lambda: os.kill(os.getpid(), signal.SIGINT))
except KeyboardInterrupt:
    print(library["lock"].locked(), time.monotonic() - begun < 30)
"""


@pytest.mark.parametrize("call", ["send", "receive"])
def test_an_interrupt_leaves_no_lock_of_a_connection_taken(call: str) -> None:
    # In a program of its own: the tests have their own use for SIGALRM.
    command = [sys.executable, "-c", IN_PARAMIKO % call]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.stderr) == ("False True\n", "")
