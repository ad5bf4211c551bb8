"""The log file of a job: frames one after the other, in the same format here and on the target."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from gpuinfra.diagnostics import Code
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.jobs.job import STDERR, STDOUT, Frame, Position

HEADER = struct.Struct("!BQI")
"""The stream, the time in nanoseconds since 1970, the length in bytes of what follows."""
# No write is longer: such a header is not one.
LONGEST = 256 << 20
CHUNK = 1 << 18
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def read_header(data: bytes | bytearray, start: int = 0) -> tuple[int, int, int] | None:
    """Stream, time and length of the frame that begins there; None where no frame does."""
    stream, time, length = HEADER.unpack_from(data, start)
    return (stream, time, length) if stream in {STDOUT, STDERR} and length <= LONGEST else None


def next_position(at: Position, time: int, length: int) -> Position:
    """Where one is after one more frame."""
    count = at.count + 1 if time == at.time and at.size else 1
    return Position(at.size + HEADER.size + length, time, count)


class FrameReader:
    """Puts frames together from bytes that come in pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, data: bytes) -> Iterator[Frame]:
        """More bytes; the frames that are whole by now. Ends in ValueError where there is no frame."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= HEADER.size:
                header = read_header(self._buffer, start)
                if header is None:
                    raise ValueError("no frame begins there")
                stream, time, length = header
                end = start + HEADER.size + length
                if len(self._buffer) < end:
                    break
                frame = Frame(stream, time, bytes(self._buffer[end - length : end]))
                start = end
                yield frame
        finally:
            del self._buffer[:start]


class LogFile:
    """A log that one process writes, the one that has the lock, and any may read at the same time.

    Raises JobError where the disk does not take it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: int | None = None
        self._writing: int | None = None
        self._seen = Position()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def try_lock(self) -> bool:
        """Take the lock for writing, until `close`; False if another process has it."""
        if self._lock is not None:
            return True
        with _translated(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            except BaseException:
                os.close(lock)
                raise
        self._lock = lock
        return True

    @property
    def is_followed(self) -> bool:
        """Whether this or another process has the lock. Leaves no trace."""
        if self._lock is not None:
            return True
        try:
            lock = os.open(f"{self._path}.lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    @property
    def position(self) -> Position:
        """The end of what is whole by now."""
        if self._writing is None:
            with _translated(self._path):
                self._seen = _scan(self._path, self._seen)
        return self._seen

    def append(self, frame: Frame) -> None:
        """One more frame, for all to see at once. Needs the lock. One that does not fit leaves nothing behind."""
        file = self._open()
        data = HEADER.pack(frame.stream, frame.time, len(frame.data)) + frame.data
        try:
            with _translated(self._path):
                view = memoryview(data)
                while view:
                    view = view[os.write(file, view) :]
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(file, self._seen.size)
            raise
        self._seen = next_position(self._seen, frame.time, len(frame.data))

    def frames(self, after_size: int = 0) -> Iterator[Frame]:
        """The whole frames from there on, up to the last that is there by now. A part of one is not there yet."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(after_size)
            while len(head := file.read(HEADER.size)) == HEADER.size:
                header = read_header(head)
                if header is None:
                    return
                stream, time, length = header
                data = file.read(length)
                if len(data) < length:
                    return
                yield Frame(stream, time, data)

    def close(self) -> None:
        """Let go of it. A second call does nothing."""
        for number in (self._writing, self._lock):
            if number is not None:
                os.close(number)
        self._writing = self._lock = None

    def _open(self) -> int:
        """The file for writing, its torn tail cut off."""
        if self._lock is None:
            raise RuntimeError("only who has the lock writes")
        if self._writing is None:
            with _translated(self._path):
                whole = _scan(self._path, Position())
                file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self._writing, self._seen = file, whole
                os.ftruncate(file, whole.size)
        return self._writing


def _scan(path: Path, start: Position) -> Position:
    """The end of the last whole frame, looked for from there on."""
    try:
        file = path.open("rb", buffering=CHUNK)
    except FileNotFoundError:
        return Position()
    with file:
        size, at = os.fstat(file.fileno()).st_size, start
        if size < at.size:
            at = Position()
        file.seek(at.size)
        while len(head := file.read(HEADER.size)) == HEADER.size:
            header = read_header(head)
            if header is None or at.size + HEADER.size + header[2] > size:
                break
            at = next_position(at, header[1], header[2])
            file.seek(header[2], os.SEEK_CUR)
    return at


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise JobError(
                "the disk of this computer is full",
                f"`{path}` cannot be written",
                "make room; the job keeps running, and `gpuinfra logs ID -f` continues its log",
                Code.DISK_FULL,
            ) from error
        raise JobError("a log cannot be written", f"`{path}`: {error.strerror}", None, Code.FILE_UNWRITABLE) from error
