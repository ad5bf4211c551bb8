"""Record what a container prints at the time when it prints it. The engine's own log gets a line only when it ends.

A process on the machine attaches to the container before it starts, and writes a log of frames as for a job without a
container. Clients read this log. If the process ends early, they complete it from the engine's log.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

from gpuinfra.remote import home, output_folders, processes, states
from gpuinfra.remote.job_log import STDERR, STDOUT, JobLog, PipeReader
from gpuinfra.remote.run_folder import LOG, RECORDER
from gpuinfra.remote.wire import RefusedError, Wire

DIAL = ("docker", "system", "dial-stdio")
REQUEST = (
    "POST /containers/%s/attach?stream=1&stdout=1&stderr=1 HTTP/1.1\r\n"
    "Host: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: 0\r\n\r\n"
)
ACCEPTED = (b"HTTP/1.1 101", b"HTTP/1.1 200")
MAX_HEAD = 1 << 16
MAX_NAME = 1 << 10
HEADER = struct.Struct(">BxxxI")
# An earlier recorder of the same run, for a container that was removed, ends within this time.
TAKE_SECONDS, TAKE_PAUSE = 10.0, 0.05


def record(wire: Wire, request: dict[str, Any]) -> None:
    """Start a recorder for a container that was created and not started yet, unless one already runs for it."""
    run, container = request["run"], request["container"]
    output_folders.check_held(run)
    os.makedirs(home.run_folder(run), exist_ok=True)
    lock = _take(run, container)
    if lock is None:
        wire.send_json({"again": True})
        return
    try:
        report = processes.run(lambda report: _work(run, container, report), lock)
    finally:
        os.close(lock)
    wire.send_json(report)


def is_recording(run: str) -> bool:
    """Return whether a recorder may still add to the log."""
    try:
        file = os.open(states.path(run, RECORDER), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not home.try_lock(file, shared=True)
    finally:
        os.close(file)


def _take(run: str, container: str) -> int | None:
    """Take the lock of the run's recorder, or return None if a process records this container."""
    file = os.open(states.path(run, RECORDER), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    name, ends = container.encode(), time.monotonic() + TAKE_SECONDS
    while not home.try_lock(file):
        is_ours = os.pread(file, MAX_NAME, 0) == name
        if is_ours or time.monotonic() > ends:
            os.close(file)
            if is_ours:
                return None
            raise RefusedError("busy", f"another container of run {run} is recorded")
        time.sleep(TAKE_PAUSE)
    if os.pread(file, MAX_NAME, 0) != name:
        # Nothing that it printed was shown: it was removed because it did not start.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(states.path(run, LOG))
        os.ftruncate(file, 0)
        os.pwrite(file, name, 0)
    return file


def _work(run: str, container: str, report: Callable[[dict[str, Any]], None]) -> None:
    import subprocess  # slow to import, and few calls need it

    try:
        child: Any = subprocess.Popen(  # noqa: S603 no word of it is from others
            DIAL, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
    except OSError as error:
        report({"code": "no-engine", "message": str(error)})
        return
    number = child.stdout.fileno()
    pipe = PipeReader(number)
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write((REQUEST % container).encode())
    demultiplexer = Demultiplexer()
    rest = _read_head(number)
    if rest is None:
        child.kill()
        report({"code": "no-engine", "message": "the engine does not send what the container prints"})
        return
    log = JobLog(states.path(run, LOG))
    report({})
    while rest or (rest := pipe.read()):
        for stream, data in demultiplexer.feed(rest):
            log.add(stream, data)
        if log.missing:
            break  # clients complete it from the engine's log
        rest = b""
    child.kill()


def _read_head(number: int) -> bytes | None:
    """Read the engine's answer, and return what follows it, or None if it refuses."""
    head = b""
    while b"\r\n\r\n" not in head:
        data = os.read(number, MAX_HEAD)
        if not data or len(head) > MAX_HEAD:
            return None
        head += data
    return head.partition(b"\r\n\r\n")[2] if head.startswith(ACCEPTED) else None


class Demultiplexer:
    """Separates the two streams of an attached container."""

    def __init__(self) -> None:
        self._header = b""
        self._stream, self._left = 0, 0

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """Add bytes, and yield what each stream printed. Consecutive parts of a stream are joined."""
        parts: list[bytes] = []
        current, start, size = self._stream, 0, len(data)
        while start < size:
            if self._left:
                part = data[start : start + self._left]
                parts.append(part)
                self._left -= len(part)
                start += len(part)
                continue
            taken = data[start : start + HEADER.size - len(self._header)]
            self._header += taken
            start += len(taken)
            if len(self._header) < HEADER.size:
                break
            (self._stream, self._left), self._header = HEADER.unpack(self._header), b""
            if self._stream != current:
                yield from _joined(current, parts)
                current, parts = self._stream, []
            start = self._take_whole_frames(data, start, parts)
        yield from _joined(current, parts)

    def _take_whole_frames(self, data: bytes, start: int, parts: list[bytes]) -> int:
        """Take frames of the current stream. Programs without a buffer print millions of them, so this is fast."""
        unpack, append = HEADER.unpack_from, parts.append
        stream, left, size = self._stream, self._left, len(data)
        while start + left + HEADER.size <= size:
            next_stream, next_left = unpack(data, start + left)
            if next_stream != stream:
                break
            append(data[start : start + left])
            start += left + HEADER.size
            left = next_left
        self._left = left
        return start


def _joined(stream: int, parts: list[bytes]) -> Iterator[tuple[int, bytes]]:
    if parts and stream in (STDOUT, STDERR):
        yield stream, b"".join(parts)
