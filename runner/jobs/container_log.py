"""A container's log as the engine sends it: frames of both streams in one, each with the time at which it was printed.

The engine keeps the order in which it was given the lines. Its times can go back a little in that order, since each
stream is stamped by itself: what leaves here never does. A log is taken up again by the times alone, so what was seen
is separated from what is new by the same rule that made the times go up.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from datetime import datetime

from gpuinfra.diagnostics import Code
from gpuinfra.runner.docker.limits import MOST_ANSWER, endless_answer
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.jobs.job import STDERR, STDOUT, Frame, Position

HEADER = struct.Struct(">BxxxI")
SECOND = 1_000_000_000
# By how much the engine's times may go back, and a log can still be taken up without reading it from its beginning.
MARGIN = 5 * SECOND


class MisplacedError(Exception):
    """What is said to have been seen is not there: the times went back by more than the margin."""


class Parser:
    """Makes frames of what the engine sends, in pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._second: tuple[bytes, bytes] | None = None
        self._base = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole by now, with the engine's own times."""
        self._buffer += data
        buffer, place = self._buffer, 0
        while len(buffer) - place >= HEADER.size:
            stream, length = HEADER.unpack_from(buffer, place)
            if length > MOST_ANSWER:
                raise endless_answer()
            end = place + HEADER.size + length
            if len(buffer) < end:
                break
            yield self._frame(stream, bytes(buffer[place + HEADER.size : end]))
            place = end
        del buffer[:place]

    @property
    def is_whole(self) -> bool:
        """Whether nothing is begun and not ended."""
        return not self._buffer

    def _frame(self, stream: int, content: bytes) -> Frame:
        stamp, space, data = content.partition(b" ")
        if stream not in {STDOUT, STDERR} or not space:
            raise _unreadable(content)
        return Frame(stream, self._time(stamp), data)

    def _time(self, stamp: bytes) -> int:
        """Of `2026-11-16T12:00:00.123456789Z`, or with the machine's own `+01:00`."""
        place = len(stamp) - (1 if stamp.endswith(b"Z") else 6)
        second, fraction, zone = stamp[:19], stamp[20:place], stamp[place:]
        try:
            if (second, zone) != self._second:
                moment = datetime.fromisoformat((second + zone).decode())
                self._base, self._second = int(moment.timestamp()) * SECOND, (second, zone)
            return self._base + int(fraction.ljust(9, b"0"))
        except ValueError:
            raise _unreadable(stamp) from None


def with_line_ends(frames: Iterable[Frame]) -> Iterator[Frame]:
    """With the ends of long lines, which Docker 20.10 leaves out.

    It keeps such a line in parts, of one time all. So if a stream continues at another time, the line has ended.
    """
    unended: dict[int, int] = {}
    for frame in frames:
        start = unended.pop(frame.stream, frame.time)
        whole = frame if start == frame.time else frame._replace(data=b"\n" + frame.data)
        if not frame.data.endswith(b"\n"):
            unended[frame.stream] = frame.time
        yield whole


def unseen(frames: Iterable[Frame], after: Position) -> Iterator[Frame]:
    """What is new of a log that was read from `beginning(after)`, or from an earlier place. Its times never go down."""
    time, passed = 0, 0
    for frame in frames:
        time = max(time, frame.time)
        if time < after.time:
            continue
        if time == after.time and passed < after.count:
            passed += 1
            continue
        if passed < after.count:
            raise MisplacedError()
        yield Frame(frame.stream, time, frame.data)
    if passed < after.count:
        raise MisplacedError()


def beginning(after: Position) -> int:
    """From which time on the engine has to be asked, to get all that is new."""
    return max(0, after.time - MARGIN)


def advanced(position: Position, frame: Frame) -> Position:
    """Where a log is seen to, after one more frame."""
    count = position.count + 1 if frame.time == position.time else 1
    return Position(position.size + frame.size, frame.time, count)


def since(time: int) -> str:
    """A time as the engine takes it, to the nanosecond."""
    return f"{time // SECOND}.{time % SECOND:09d}"


def _unreadable(content: bytes) -> JobError:
    said = content[:200].decode("utf-8", "replace")
    return JobError("the job's log cannot be read", f"the engine says `{said}`", None, Code.JOB_FAILED)
