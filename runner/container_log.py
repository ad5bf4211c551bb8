"""Parse a container's log as the engine sends it: frames of both streams, each with the time of its output.

The engine keeps the order of the lines, but stamps each stream separately, so times can go back a little. `new_frames`
returns times that never go back: each is at least the time before it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from datetime import datetime

from gpuinfra.diagnostics import Code
from gpuinfra.models.run import STDERR, STDOUT, Frame
from gpuinfra.runner.docker.stream import MAX_RESPONSE, response_too_large
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.job import Position

HEADER = struct.Struct(">BxxxI")
SECOND = 1_000_000_000


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
    """Yield what a log, read from its beginning, has after a position. Times never go back."""
    skipped = {STDOUT: position.stdout, STDERR: position.stderr}
    time = position.time
    for frame in frames:
        known = min(skipped[frame.stream], len(frame.data))
        skipped[frame.stream] -= known
        if known < len(frame.data):
            time = max(time, frame.time)
            yield Frame(frame.stream, time, frame.data[known:])


def _unreadable(content: bytes) -> JobError:
    data = content[:200].decode("utf-8", "replace")
    return JobError("the job's log cannot be read", f"the engine sent `{data}`", None, Code.JOB_FAILED)
