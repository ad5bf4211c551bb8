"""Parse a container's log as the engine sends it: frames of both streams, each with the time of its output.

The engine keeps the order of the lines, but stamps each stream separately, so times can go back a little. The frames
that leave this module have times that never go back: each is at least the time before it. The engine can resume a log
only from a time, so the same rule separates the frames that were read before from new ones.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from datetime import datetime

from gpuinfra.diagnostics import Code
from gpuinfra.models.outputs import STDERR, STDOUT, Frame
from gpuinfra.runner.docker.stream import MAX_RESPONSE, response_too_large
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.jobs.job import Position

HEADER = struct.Struct(">BxxxI")
SECOND = 1_000_000_000
# How far the engine's times may go back before a log has to be read from its beginning.
REORDER_MARGIN = 5 * SECOND


class PositionLostError(Exception):
    """The log does not have the frames of a position: its times went back by more than the margin."""


class Parser:
    """Parses frames from bytes of the engine that arrive in pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._second: tuple[bytes, bytes] | None = None
        self._base = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add bytes and yield the frames that are complete, with the engine's times."""
        self._buffer += data
        buffer, start = self._buffer, 0
        while len(buffer) - start >= HEADER.size:
            stream, length = HEADER.unpack_from(buffer, start)
            if length > MAX_RESPONSE:
                raise response_too_large()
            end = start + HEADER.size + length
            if len(buffer) < end:
                break
            yield self._frame(stream, bytes(buffer[start + HEADER.size : end]))
            start = end
        del buffer[:start]

    @property
    def is_whole(self) -> bool:
        """Whether the bytes so far end with a whole frame."""
        return not self._buffer

    def _frame(self, stream: int, content: bytes) -> Frame:
        stamp, space, data = content.partition(b" ")
        if stream not in {STDOUT, STDERR} or not space:
            raise _unreadable(content)
        return Frame(stream, self._time(stamp), data)

    def _time(self, stamp: bytes) -> int:
        """Return the nanoseconds since 1970 of `2026-11-16T12:00:00.123456789Z`, or of a time with an offset."""
        zone_at = len(stamp) - (1 if stamp.endswith(b"Z") else 6)
        second, fraction, zone = stamp[:19], stamp[20:zone_at], stamp[zone_at:]
        try:
            if (second, zone) != self._second:
                moment = datetime.fromisoformat((second + zone).decode())
                self._base, self._second = int(moment.timestamp()) * SECOND, (second, zone)
            return self._base + int(fraction.ljust(9, b"0"))
        except ValueError:
            raise _unreadable(stamp) from None


def restore_line_ends(frames: Iterable[Frame]) -> Iterator[Frame]:
    """Add the ends of long lines, which Docker 20.10 omits.

    It stores a long line in parts with the same time. If a stream continues at another time, the line has ended.
    """
    unended: dict[int, int] = {}
    for frame in frames:
        line_time = unended.pop(frame.stream, frame.time)
        if not frame.data.endswith(b"\n"):
            unended[frame.stream] = frame.time
        yield frame if line_time == frame.time else frame._replace(data=b"\n" + frame.data)


def new_frames(frames: Iterable[Frame], position: Position) -> Iterator[Frame]:
    """Yield the new frames of a log that was read from `resume_time(position)` or earlier. Times never go back."""
    time, skipped = 0, 0
    for frame in frames:
        time = max(time, frame.time)
        if time < position.time:
            continue
        if time == position.time and skipped < position.count:
            skipped += 1
            continue
        if skipped < position.count:
            raise PositionLostError()
        yield Frame(frame.stream, time, frame.data)
    if skipped < position.count:
        raise PositionLostError()


def resume_time(position: Position) -> int:
    """Return the time from which to read the engine's log, to get all frames after a position."""
    return max(0, position.time - REORDER_MARGIN)


def next_position(position: Position, frame: Frame) -> Position:
    """Return the position after another frame."""
    count = position.count + 1 if frame.time == position.time else 1
    return Position(position.size + frame.size, frame.time, count)


def engine_time(time: int) -> str:
    """Return a time in the engine's format, with nanoseconds."""
    return f"{time // SECOND}.{time % SECOND:09d}"


def _unreadable(content: bytes) -> JobError:
    data = content[:200].decode("utf-8", "replace")
    return JobError("the job's log cannot be read", f"the engine sent `{data}`", None, Code.JOB_FAILED)
