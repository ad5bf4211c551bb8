"""Limits for what an engine answers: it may be on a hostile machine, and must not fill the memory."""

from __future__ import annotations

from collections.abc import Iterator

from gpuinfra.diagnostics import Code
from gpuinfra.runner.errors import JobError

# In bytes; far more than any honest engine sends.
MOST_ANSWER = 64 << 20
"""Of an answer that is read as a whole, and of one frame of a log."""
MOST_MESSAGE = 4 << 20
"""Of one message in the report of a build or a pull."""


def endless_answer() -> JobError:
    """Return the error for an answer that is longer than the limit."""
    note, help_line = "its answer does not end", "look for yourself there: `docker version`, `docker info`"
    return JobError("Docker Engine failed on the target", note, help_line, Code.ENGINE_FAILED)


class MessageReader:
    """Splits a report into messages, one per line, from bytes that come in pieces of any size."""

    def __init__(self) -> None:
        self.rest = b""
        """The beginning of the next message."""

    def add(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that are complete now. Raises JobError if one has no end."""
        *messages, self.rest = (self.rest + data).split(b"\n")
        yield from messages
        if len(self.rest) > MOST_MESSAGE:
            raise endless_answer()
