"""The part of a log that is shown: its last lines, or what was printed since a time."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from gpuinfra.models.run import STDERR, STDOUT, Frame
from gpuinfra.runner.log import LogFile

FIRST_BYTES, GROWTH = 1 << 16, 4


@dataclass(frozen=True)
class LogWindow:
    """What to show of a log. By default, all of it."""

    tail: int | None = None
    """At most this many lines, of both streams together."""
    since: int = 0
    """Nanoseconds since 1970, by the target's clock."""
    streams: Collection[int] = (STDOUT, STDERR)

    def frames(self, log: LogFile, end: int | None = None) -> Iterator[Frame]:
        """Yield the frames to show, of those that end before this many bytes. With `tail`, each is a line."""
        if self.tail is None and not self.since:
            yield from log.frames(end=end)
            return
        starts, first = array("Q"), None
        for start, time in log.starts(end):
            starts.append(start)
            if first is None and time >= self.since:
                first = len(starts) - 1
        if first is None:
            return
        if self.tail is None:
            yield from log.frames(starts[first], end)
        else:
            yield from self._last_lines(log, starts, first, end)

    def _last_lines(self, log: LogFile, starts: array[int], first: int, end: int | None) -> list[Frame]:
        """Return the last lines, reading only as much of the log's end as they need."""
        size = FIRST_BYTES
        while self.tail:
            begin = max(first, bisect_left(starts, max(0, starts[-1] - size)))
            frames = (frame for frame in log.frames(starts[begin], end) if frame.stream in self.streams)
            lines = _lines(frames, self.streams if begin > first else ())
            if len(lines) >= self.tail or begin == first:
                return lines[-self.tail :]
            size *= GROWTH
        return []


def _lines(frames: Iterable[Frame], cut: Collection[int]) -> list[Frame]:
    """Return the lines of both streams in the order in which they end.

    The first line of a stream in `cut` is not whole, so only what follows all such lines is returned.
    """
    lines: list[Frame] = []
    begun: dict[int, Frame] = {}
    left_out = set(cut)
    for frame in frames:
        before = begun.pop(frame.stream, None)
        *whole, rest = ((before.data if before else b"") + frame.data).split(b"\n")
        for line in whole:
            if frame.stream in left_out:
                left_out.discard(frame.stream)
                lines.clear()
            else:
                lines.append(frame._replace(data=line + b"\n"))
        if rest:
            begun[frame.stream] = frame._replace(data=rest)
    if left_out & begun.keys():
        return []
    return [*lines, *begun.values()]
