"""The log file of a job: a sequence of frames, in the same format here and on the target."""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from gpuinfra.models.run import STDERR, STDOUT, Frame
from gpuinfra.remote.home import try_lock
from gpuinfra.runner.errors import write_error
from gpuinfra.runner.job import Position

HEADER = struct.Struct("!BQI")
"""The stream, the time in nanoseconds since 1970, and the length of the data in bytes."""
# No single write is longer, so a header with a greater length is damaged.
MAX_FRAME_BYTES = 256 << 20
CHUNK = 1 << 18


def read_header(data: bytes | bytearray, start: int = 0) -> tuple[int, int, int] | None:
    """Return the stream, time and length of the frame at `start`, or None if no frame starts there."""
    stream, time, length = HEADER.unpack_from(data, start)
    return (stream, time, length) if stream in {STDOUT, STDERR} and length <= MAX_FRAME_BYTES else None


class FrameReader:
    """Parses frames from bytes that arrive in pieces of any size."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def add(self, data: bytes) -> Iterator[Frame]:
        """Add bytes and yield the frames that are complete. Raise ValueError if the bytes are not frames."""
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= HEADER.size:
                header = read_header(self._buffer, start)
                if header is None:
                    raise ValueError("the log has invalid data between frames")
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
    """A log that the process with the lock writes, and that others can read at the same time.

    Methods raise JobError if the file cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: int | None = None
        self._file: int | None = None
        """The descriptor for writing."""
        self._end = Position()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def try_lock(self) -> bool:
        """Acquire the lock for writing until `close`. Return False if another process has it."""
        if self._lock is not None:
            return True
        with _job_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                is_locked = try_lock(lock)
            except BaseException:
                os.close(lock)
                raise
            if not is_locked:
                os.close(lock)
                return False
        self._lock = lock
        return True

    @property
    def is_followed(self) -> bool:
        """Whether this or another process has the lock. Creates no file."""
        if self._lock is not None:
            return True
        try:
            lock = os.open(f"{self._path}.lock", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            return not try_lock(lock, shared=True)
        finally:
            os.close(lock)

    @property
    def position(self) -> Position:
        """The end of the last whole frame."""
        if self._file is None:
            with _job_errors(self._path):
                self._end = _scan(self._path, self._end)
        return self._end

    def append(self, frame: Frame) -> None:
        """Write a frame, which readers see at once. Needs the lock. A frame that cannot be written leaves no bytes."""
        file = self._open()
        data = HEADER.pack(frame.stream, frame.time, len(frame.data)) + frame.data
        try:
            with _job_errors(self._path):
                view = memoryview(data)
                while view:
                    view = view[os.write(file, view) :]
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(file, self._end.size)
            raise
        self._end = self._end.after(frame)

    def frames(self, after_size: int = 0, end: int | None = None) -> Iterator[Frame]:
        """Yield the whole frames that the file has after this many bytes, and before `end`."""
        for file, stream, time, length in self._headers(after_size, end):
            data = file.read(length)
            if len(data) < length:
                return
            yield Frame(stream, time, data)

    def starts(self, end: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield where each frame starts, and its time, without reading its data."""
        for file, _, time, length in self._headers(0, end):
            yield file.tell() - HEADER.size, time
            file.seek(length, os.SEEK_CUR)

    def _headers(self, start: int, end: int | None) -> Iterator[tuple[BinaryIO, int, int, int]]:
        """Yield the file at the data of each frame, with the frame's stream, time and length."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(start)
            while (end is None or file.tell() < end) and len(head := file.read(HEADER.size)) == HEADER.size:
                header = read_header(head)
                if header is None:
                    return
                yield file, *header

    def close(self) -> None:
        """Close the file and release the lock. Does nothing if it is closed."""
        for number in (self._file, self._lock):
            if number is not None:
                os.close(number)
        self._file = self._lock = None

    def _open(self) -> int:
        """Return the file opened for writing, without an incomplete frame at its end."""
        if self._lock is None:
            raise RuntimeError("writing needs the lock")
        if self._file is None:
            with _job_errors(self._path):
                end = _scan(self._path, Position())
                file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                self._file, self._end = file, end
                os.ftruncate(file, end.size)
        return self._file


def _scan(path: Path, start: Position) -> Position:
    """Return the end of the last whole frame, searched from `start` on."""
    try:
        file = path.open("rb", buffering=CHUNK)
    except FileNotFoundError:
        return Position()
    with file:
        file_size = os.fstat(file.fileno()).st_size
        size, last, counts = start.size, start.time, [0, start.stdout, start.stderr]
        if file_size < size:
            size, last, counts = 0, 0, [0, 0, 0]
        file.seek(size)
        while len(head := file.read(HEADER.size)) == HEADER.size:
            header = read_header(head)
            if header is None or size + HEADER.size + header[2] > file_size:
                break
            stream, last, length = header
            size += HEADER.size + length
            counts[stream] += length
            file.seek(length, os.SEEK_CUR)
    return Position(size, last, counts[STDOUT], counts[STDERR])


@contextlib.contextmanager
def _job_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "free some space; the job keeps running, and `gpuinfra logs ID -f` continues its log"
        raise write_error(error, "the log cannot be written", path, remedy) from error
