"""Streams to an engine over our connection: each is one `docker system dial-stdio` on the machine."""

from __future__ import annotations

import contextlib
import io
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from gpuinfra.runner.connection.port import CHUNK, Connection, Process
from gpuinfra.runner.docker.check import Said
from gpuinfra.runner.errors import Broken, ConnectError, TimedOut

COMMAND = ("docker", "system", "dial-stdio")
# What the start-up files of a user's shell print stands before it.
ANSWER = b"HTTP/1."
MOST_GREETING = 1 << 20
# Printed by `docker` when it had reached an engine that hung up: "error while Copy (stdin to stream): … use of closed
# network connection". It ends with 0 or 1 then, by which direction notices it first.
HUNG_UP = re.compile(r"error while (copy|closeread|closewrite) \(", re.IGNORECASE)
# For a process that has ended to say why.
REASON_SECONDS = 5.0

Diagnose = Callable[[Said], Exception]
"""What it means that the `docker` command ended so."""


class Stream:
    """As much of a socket as HTTP needs, over a process."""

    def __init__(self, process: Process, diagnose: Diagnose) -> None:
        self._process, self._diagnose = process, diagnose
        self._has_answered, self._rest = False, b""
        self._users = 1
        self._lock = threading.Lock()
        self._timeout: float | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the other end is gone."""
        try:
            self._process.wait(0)
        except TimedOut:
            return False
        except ConnectError:
            return True
        return True

    def settimeout(self, seconds: float | None) -> None:
        """How long it may get nowhere from now on."""
        self._timeout = seconds
        self._process.set_idle_timeout(seconds)

    def gettimeout(self) -> float | None:
        """What was set."""
        return self._timeout

    def sendall(self, data: bytes | memoryview) -> None:
        """All of it."""
        try:
            self._process.write(data)
        except Broken:
            if not self._has_answered:
                self._answer()  # raises what was said instead
            raise

    def receive(self, most: int) -> bytes:
        """Some bytes, as soon as there are any; none at the end."""
        if not self._has_answered:
            self._rest = self._answer()
            self._has_answered = True
        if self._rest:
            taken, self._rest = self._rest[:most], self._rest[most:]
            return taken
        return self._process.read(most)

    def _answer(self) -> bytes:
        """The beginning of the engine's first answer; what the machine's shell says before it is left behind."""
        found = bytearray()
        while (place := found.find(ANSWER)) < 0:
            data = self._process.read(CHUNK)
            found += data
            if not data or len(found) > MOST_GREETING:
                raise self._reason(found) or Broken("the engine hung up before it answered")
        return bytes(found[place:])

    def makefile(self, mode: str = "rb", *_: Any, **__: Any) -> io.BufferedReader:  # noqa: ARG002 a socket's signature
        """For reading."""
        with self._lock:
            self._users += 1
        return io.BufferedReader(_Reader(self), CHUNK)

    def close(self) -> None:
        """Let go of it. As with sockets, files made from it keep it open."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._process.close()

    def _reason(self, said: bytearray) -> Exception | None:
        """Why the process ended, where it did so instead of answering."""
        try:
            code = self._process.wait(REASON_SECONDS)
        except TimedOut:
            return None
        except ConnectError as error:
            return error
        if code == 0:
            return None  # it had reached an engine, which has hung up
        # Standard error is read in the background.
        ends = time.monotonic() + 0.5
        while not self._process.errors and not said and time.monotonic() < ends:
            time.sleep(0.01)
        text = f"{self._process.errors} {said.decode('utf-8', 'replace')}"
        return None if HUNG_UP.search(text) else self._diagnose(Said(code, text))


class _Reader(io.RawIOBase):
    """A stream as a file."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._stream.receive(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def settimeout(self, seconds: float | None) -> None:
        # The SDK looks for it here, to let long answers take their time.
        self._stream.settimeout(seconds)

    def gettimeout(self) -> float | None:
        return self._stream.gettimeout()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._stream.close()


class Streams:
    """Makes ways to an engine; those that were made ahead of time come first."""

    def __init__(self, connection: Connection, diagnose: Diagnose, timeout: float) -> None:
        self._connection, self._diagnose, self._timeout = connection, diagnose, timeout
        self._ready: list[Stream] = []
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Open one ahead of time. A failure is raised by the first use."""
        with contextlib.suppress(ConnectError):
            stream = self._start()
            with self._lock:
                self._ready.append(stream)

    def take(self) -> Stream:
        """Return a stream that is not in use."""
        with self._lock:
            while self._ready:
                stream = self._ready.pop()
                if not stream.has_ended:
                    return stream
                stream.close()
        return self._start()

    def close(self) -> None:
        """Close those that are not in use."""
        with self._lock:
            streams, self._ready = self._ready, []
        for stream in streams:
            stream.close()

    def _start(self) -> Stream:
        return Stream(self._connection.start(COMMAND, timeout=self._timeout), self._diagnose)
