"""The port to a job that was started: it is read, asked and ended from here, and goes on without us."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

STDOUT, STDERR = 1, 2
FRAME_HEADER = 13


class Frame(NamedTuple):
    """Some bytes that a job printed, at once, on one of its streams; not always a whole line."""

    stream: int
    """STDOUT or STDERR."""
    time: int
    """When, in nanoseconds since 1970, by the target's clock. Never less than that of the frame before."""
    data: bytes

    @property
    def size(self) -> int:
        """How much of a log file it takes."""
        return FRAME_HEADER + len(self.data)


@dataclass(frozen=True, slots=True)
class Position:
    """How much of a job's log was seen: what follows is new."""

    size: int = 0
    """Bytes of whole frames in the log file, which has on the remote side the same format as here."""
    time: int = 0
    """The last frame's time."""
    count: int = 0
    """How many frames with just that time were seen."""


class StopReason(StrEnum):
    """What ended a job."""

    EXITED = "exited"
    OUT_OF_MEMORY = "out of memory"
    TIMED_OUT = "timed out"
    CANCELLED = "cancelled"
    ENGINE_STOPPED = "the engine was stopped"
    EVICTED = "evicted"
    """Azure takes the spot machine back."""
    LEASE_OVER = "lease over"
    IDLE = "idle"
    COST_CAP = "cost cap"
    LOST = "lost"

    @property
    def is_by_machine(self) -> bool:
        """Whether the machine itself ended it, about to go off: `remote.stop_reason` has the same words."""
        return self in {StopReason.EVICTED, StopReason.LEASE_OVER, StopReason.IDLE, StopReason.COST_CAP}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended."""

    exit_code: int
    """The job's own; 128 and the signal's number where a signal ended it."""
    how: StopReason
    at: datetime | None = None
    detail: str = ""


class JobError(Exception):
    """A job cannot be begun, followed or ended, and no new connection would help; `help` is what to do.

    What a new connection may mend is a ConnectError.
    """

    def __init__(self, summary: str, note: str = "", help: str | None = None, code: str = "job-failed") -> None:  # noqa: A002
        super().__init__(f"{summary}: {note}" if note else summary)
        self.summary, self.note, self.help, self.code = summary, note, help, code
        """`code` is a value of `gpuinfra.diagnostics.Code`."""


class Job(Protocol):
    """A job that was started. Every method raises ConnectError and JobError, and nothing else."""

    def frames(self, after: Position) -> Iterator[Frame]:
        """What it prints from there on, in order, as it prints it; ends when it has ended and all was given."""

    def ended(self) -> Ended | None:
        """How it ended; None while it runs."""

    def cancel(self, grace: float) -> None:
        """Ask it to end (SIGTERM), and after so many seconds make it (SIGKILL). Returns when it has ended; one that
        has ended already is no error."""

    def remove(self) -> None:
        """Forget it on the target, but for its outputs. Absent is done."""
