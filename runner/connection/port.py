"""The port to a machine: what a job asks of it. Errors are in `runner.errors`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

CHUNK = 1 << 16


@dataclass(frozen=True, slots=True)
class Completed:
    """A command that has ended. Output that is not UTF-8 has replacement characters."""

    exit_code: int
    """The command's own; -1 where a signal ended it."""
    stdout: str
    stderr: str


class Process(Protocol):
    """A command that is running, with its streams. Every method raises ConnectError and nothing else.

    One thread may write while another reads.
    """

    def write(self, data: bytes | memoryview) -> None:
        """Give it all of this to read; returns when the machine has taken it."""

    def end_input(self) -> None:
        """There is no more to read. A second call does nothing."""

    def read(self, most: int = CHUNK) -> bytes:
        """Some of what it prints, as soon as there is any; empty at the end."""

    @property
    def errors(self) -> str:
        """The end of what it has said on standard error so far, which is read in the background."""

    def idle(self, seconds: float | None) -> None:
        """From now on, a read or a write without progress for these seconds raises TimedOut."""

    def wait(self, timeout: float) -> int:
        """Its exit code, -1 where a signal ended it; TimedOut if it has not ended."""

    def close(self) -> None:
        """Let go of it: its streams are closed, and it is not waited for. A second call does nothing."""


class Shell(Protocol):
    """A machine that takes commands, one answer each. Every method raises ConnectError and nothing else."""

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        """Run it to its end, with nothing to read. A list is run word by word, text is read by the user's shell."""

    def close(self) -> None:
        """Hang up. A second call does nothing."""


class Connection(Shell, Protocol):
    """A machine with more than questions to it: this computer, or one that is reached by SSH.

    Every method raises ConnectError and nothing else. Commands may run at once, from several threads.
    """

    @property
    def where(self) -> str:
        """The place, as it is named in messages: `203.0.113.7:22`, `this computer`."""

    @property
    def is_open(self) -> bool:
        """Whether it can be used; a connection that was lost is not."""

    @property
    def heard_at(self) -> float:
        """When something last came from it, on the monotonic clock. This computer is never silent."""

    def start(self, command: Sequence[str] | str, *, timeout: float, idle: float | None = None) -> Process:
        """Start it, within `timeout` seconds. A read or a write without progress for `idle` seconds raises TimedOut;
        without `idle`, reading waits as long as the machine is there."""


MOST = 1 << 14


class Tail:
    """Keeps the last of what is added; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        """More of it."""
        with self._lock:
            self._kept += data
            del self._kept[:-MOST]

    @property
    def text(self) -> str:
        """What is kept."""
        with self._lock:
            return self._kept.decode("utf-8", "replace")
