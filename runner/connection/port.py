"""The port to a machine that runs commands. Its errors are in `runner.errors`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

CHUNK = 1 << 16
MAX_TAIL_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of a command. Invalid UTF-8 in the output is replaced."""

    exit_code: int
    """The exit code, or -1 if a signal ended the command."""
    stdout: str
    stderr: str


class Process(Protocol):
    """A running command with its streams. Methods raise only ConnectError. One thread may write while another reads."""

    def write(self, data: bytes | memoryview) -> None:
        """Write all data to the command's input; return when the machine has accepted it."""

    def end_input(self) -> None:
        """Close the command's input. Does nothing if it is closed."""

    def read(self, max_bytes: int = CHUNK) -> bytes:
        """Return output as soon as there is any, or no bytes at the end."""

    @property
    def errors(self) -> str:
        """The last part of standard error, which is read in the background."""

    def set_idle_timeout(self, seconds: float | None) -> None:
        """Let later reads and writes raise TimedOut after this many seconds without progress."""

    def wait(self, timeout: float) -> int:
        """Return the exit code, or -1 if a signal ended the command. Raise TimedOut if it still runs."""

    def close(self) -> None:
        """Close the streams without waiting for the command. Does nothing if they are closed."""


class Shell(Protocol):
    """A machine that runs a command and returns its result. Methods raise only ConnectError."""

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        """Run a command without input to its end. A list is a program with arguments; a string is for the shell."""

    def close(self) -> None:
        """Close the connection. Does nothing if it is closed."""


class Connection(Shell, Protocol):
    """A machine that also starts commands with streams: this computer, or one that is reached by SSH.

    Methods raise only ConnectError. Several threads may run commands at the same time.
    """

    @property
    def where(self) -> str:
        """The machine's name in messages, such as `203.0.113.7:22` or `this computer`."""

    @property
    def is_open(self) -> bool:
        """Whether the connection works. A lost connection never works again."""

    @property
    def last_received_at(self) -> float:
        """When data last arrived, on the monotonic clock; infinity for this computer."""

    def start(self, command: Sequence[str] | str, *, timeout: float, idle: float | None = None) -> Process:
        """Start a command within `timeout` seconds. Reads and writes raise TimedOut after `idle` seconds without
        progress; without `idle`, a read waits for as long as the connection works."""


class Tail:
    """Keeps the last bytes that were added. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes = bytearray()

    def add(self, data: bytes) -> None:
        with self._lock:
            self._bytes += data
            del self._bytes[:-MAX_TAIL_BYTES]

    @property
    def text(self) -> str:
        with self._lock:
            return self._bytes.decode("utf-8", "replace")
