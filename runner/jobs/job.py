"""The port to a job that was started: read its output, ask how it is, stop it. It runs without a client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

from gpuinfra.remote import run_folder

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
    """Why a job ended."""

    EXITED = run_folder.EXITED
    OUT_OF_MEMORY = run_folder.OUT_OF_MEMORY
    TIMED_OUT = run_folder.TIMED_OUT
    CANCELLED = run_folder.CANCELLED
    ENGINE_STOPPED = run_folder.ENGINE_STOPPED
    EVICTED = run_folder.EVICTED
    """Azure takes the spot machine back."""
    LEASE_OVER = run_folder.LEASE_OVER
    IDLE = run_folder.IDLE
    COST_CAP = run_folder.COST_CAP
    LOST = run_folder.LOST

    @property
    def is_by_machine(self) -> bool:
        """Whether the machine stopped the job before it went off."""
        return self in run_folder.BY_MACHINE


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended."""

    exit_code: int
    """The job's own; 128 and the signal's number where a signal ended it."""
    how: StopReason
    at: datetime | None = None
    detail: str = ""
    started: datetime | None = None
    """When the job started, by the same clock as `at`, if known."""


class Job(Protocol):
    """A job that was started. Every method raises ConnectError and JobError, and nothing else."""

    def frames(self, after: Position) -> Iterator[Frame]:
        """What it prints from there on, in order, as it prints it; ends when it has ended and all was given."""

    def ended(self) -> Ended | None:
        """How it ended; None while it runs."""

    def cancel(self, grace: float) -> None:
        """Ask it to end (SIGTERM), and kill it after the grace period (SIGKILL). Returns when it has ended; if it has
        ended already, at once."""

    def remove(self) -> None:
        """Forget it on the target, but for its outputs. Absent is done."""
