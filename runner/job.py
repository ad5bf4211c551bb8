"""The port to a started job: read its output, query its state, stop it. The job runs without a client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, Protocol

from gpuinfra.models.run import STDOUT, Frame
from gpuinfra.remote import run_folder


class Position(NamedTuple):
    """How much of a job's log has been read."""

    size: int = 0
    """The bytes of whole frames in the log file, which has the same format here and on the target."""
    time: int = 0
    """The time of the last frame."""
    stdout: int = 0
    """The bytes that the job printed on this stream."""
    stderr: int = 0

    def after(self, frame: Frame) -> Position:
        """Return the position after another frame."""
        count = len(frame.data)
        out, err = (count, 0) if frame.stream == STDOUT else (0, count)
        return Position(self.size + frame.size, frame.time, self.stdout + out, self.stderr + err)


class StopReason(StrEnum):
    """Why a job ended."""

    EXITED = run_folder.EXITED
    OUT_OF_MEMORY = run_folder.OUT_OF_MEMORY
    TIMED_OUT = run_folder.TIMED_OUT
    CANCELLED = run_folder.CANCELLED
    ENGINE_STOPPED = run_folder.ENGINE_STOPPED
    EVICTED = run_folder.EVICTED
    """Azure evicted the spot machine."""
    LEASE_OVER = run_folder.LEASE_OVER
    IDLE = run_folder.IDLE
    COST_CAP = run_folder.COST_CAP
    LOST = run_folder.LOST

    @property
    def is_by_machine(self) -> bool:
        """Whether the machine stopped the job before it went off."""
        return self in run_folder.BY_MACHINE


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended."""

    exit_code: int
    """The job's exit code, or 128 plus the number of the signal that ended it."""
    stop_reason: StopReason
    at: datetime | None = None
    detail: str = ""
    started: datetime | None = None
    """When the job started, by the same clock as `at`, if known."""


class Job(Protocol):
    """A started job. Methods raise only ConnectError and JobError."""

    def frames(self, after: Position) -> Iterator[Frame]:
        """Yield the output after a position, in order and as it appears, until the job has ended."""

    def ended(self) -> JobEnd | None:
        """Return how the job ended, or None while it runs."""

    def cancel(self, grace: float) -> None:
        """Send SIGTERM, and SIGKILL after the grace period. Return when the job has ended."""

    def remove(self) -> None:
        """Delete the job on the target, except for its outputs. Does nothing if the target does not know it."""
