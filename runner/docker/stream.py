"""Streams to an engine over our connection, each with one `docker system dial-stdio` on the machine; size limits."""

from __future__ import annotations

import contextlib
import io
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from gpuinfra.diagnostics import Code
from gpuinfra.runner.connection.port import CHUNK, Connection, Process
from gpuinfra.runner.docker.check import CommandOutput
from gpuinfra.runner.errors import Broken, ConnectError, JobError, TimedOut

# Limits in bytes for a hostile engine, far above real responses.
MAX_RESPONSE = 64 << 20
"""For a response that is read as a whole, and for one frame of a log."""
MAX_MESSAGE = 4 << 20
"""For one message in the report of a build or a pull."""


def response_too_large() -> JobError:
    """Return the error for a response over the limit."""
    note, help_line = "its response is too large", "run there: `docker version`, `docker info`"
    return JobError("Docker Engine failed on the target", note, help_line, Code.ENGINE_FAILED)


class MessageReader:
    """Splits a report into messages, one per line."""

    def __init__(self) -> None:
        self.rest = b""
        """The beginning of the next message."""

    def add(self, data: bytes) -> Iterator[bytes]:
        """Yield the messages that are complete now. Raise JobError if one is too large."""
        *messages, self.rest = (self.rest + data).split(b"\n")
        yield from messages
        if len(self.rest) > MAX_MESSAGE:
            raise response_too_large()


COMMAND = ("docker", "system", "dial-stdio")
# Starts a response. The start-up files of a user's shell may print text before it.
RESPONSE = b"HTTP/1."
MAX_GREETING = 1 << 20
# `docker` prints this if it reached an engine that closed the connection: "error while Copy (stdin to stream): … use of
# closed network connection". Its exit code is then 0 or 1, depending on the direction that notices it first.
CLOSED = re.compile(r"error while (copy|closeread|closewrite) \(", re.IGNORECASE)
# How long to wait for the exit code and error of a process that has ended.
EXIT_SECONDS = 5.0

Diagnose = Callable[[CommandOutput], Exception]
"""Returns the error for the output of a `docker` command that failed."""


class Stream:
    """The parts of a socket that HTTP needs, over a process."""

    def __init__(self, process: Process, diagnose: Diagnose) -> None:
        self._process, self._diagnose = process, diagnose
        self._has_answered, self._rest = False, b""
        self._users = 1
        self._lock = threading.Lock()
        self._timeout: float | None = None

    @property
    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        try:
            self._process.wait(0)
        except TimedOut:
            return False
        except ConnectError:
            return True
        return True

    def settimeout(self, seconds: float | None) -> None:
        """Set the limit for reads and writes without progress."""
        self._timeout = seconds
        self._process.set_idle_timeout(seconds)

    def gettimeout(self) -> float | None:
        return self._timeout

    def sendall(self, data: bytes | memoryview) -> None:
        try:
            self._process.write(data)
        except Broken:
            if not self._has_answered:
                self._first_response()  # raises the error that the process printed
            raise

    def receive(self, limit: int) -> bytes:
        """Return the next bytes, at most this many, or none at the end."""
        if not self._has_answered:
            self._rest = self._first_response()
            self._has_answered = True
        if self._rest:
            taken, self._rest = self._rest[:limit], self._rest[limit:]
            return taken
        return self._process.read(limit)

    def _first_response(self) -> bytes:
        """Return the start of the engine's first response, without text that the machine's shell printed before it."""
        found = bytearray()
        while (place := found.find(RESPONSE)) < 0:
            data = self._process.read(CHUNK)
            found += data
            if not data or len(found) > MAX_GREETING:
                raise self._failure(found) or Broken("the engine closed the connection before it answered")
        return bytes(found[place:])

    def makefile(self, mode: str = "rb", *_: Any, **__: Any) -> io.BufferedReader:  # noqa: ARG002 a socket's signature
        """Return a file for reading."""
        with self._lock:
            self._users += 1
        return io.BufferedReader(_Reader(self), CHUNK)

    def close(self) -> None:
        """Close the stream. As with a socket, files made from it keep it open."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._process.close()

    def _failure(self, printed: bytearray) -> Exception | None:
        """Return the error of a process that ended before a response, if it is known."""
        try:
            code = self._process.wait(EXIT_SECONDS)
        except TimedOut:
            return None
        except ConnectError as error:
            return error
        if code == 0:
            return None  # the engine closed the connection
        # Standard error is read in the background.
        ends = time.monotonic() + 0.5
        while not self._process.errors and not printed and time.monotonic() < ends:
            time.sleep(0.01)
        text = f"{self._process.errors} {printed.decode('utf-8', 'replace')}"
        return None if CLOSED.search(text) else self._diagnose(CommandOutput(code, text))


class _Reader(io.RawIOBase):
    """A file that reads from a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.receive(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def settimeout(self, seconds: float | None) -> None:
        # The SDK calls this to allow long responses.
        self._stream.settimeout(seconds)

    def gettimeout(self) -> float | None:
        return self._stream.gettimeout()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._stream.close()


class Streams:
    """Opens streams to an engine, and keeps those that were opened ahead of time."""

    def __init__(self, connection: Connection, diagnose: Diagnose, timeout: float) -> None:
        self._connection, self._diagnose, self._timeout = connection, diagnose, timeout
        self._ready: list[Stream] = []
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Open a stream ahead of time. An error is raised by the first use instead."""
        with contextlib.suppress(ConnectError):
            stream = self._start()
            with self._lock:
                self._ready.append(stream)

    def take(self) -> Stream:
        """Return an unused stream."""
        with self._lock:
            while self._ready:
                stream = self._ready.pop()
                if not stream.has_ended:
                    return stream
                stream.close()
        return self._start()

    def close(self) -> None:
        """Close the unused streams."""
        with self._lock:
            streams, self._ready = self._ready, []
        for stream in streams:
            stream.close()

    def _start(self) -> Stream:
        return Stream(self._connection.start(COMMAND, timeout=self._timeout), self._diagnose)
