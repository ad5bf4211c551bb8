"""The content of files: read for digests, read again for what the target lacks, and compressed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from gpuinfra.remote.staging import DIGEST_LETTERS, digest_of
from gpuinfra.runner.errors import UploadError

BLOCK = 1 << 20
# How often a file that changes while it is read is read again.
ATTEMPTS = 5
# A file may have become a pipe or a link in the meantime: do not wait for it or follow it.
OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Content(NamedTuple):
    """The content of a file, or its digest."""

    stat: os.stat_result
    size: int
    digest: str
    data: bytes | None
    """The whole content, if the file is not larger than requested."""


def read(root: bytes, path: str, keep: int, report: Callable[[int], None]) -> Content:
    """Return a consistent content of a file, with its data if it has at most `keep` bytes.

    If the file changes, it is read until two reads agree. So a log that grows is sent up to its size at the start.
    """
    try:
        handle = os.open(_full(root, path), OPEN)
        try:
            return _read_consistent(handle, path, keep, report)
        finally:
            os.close(handle)
    except OSError as error:
        raise UploadError(
            "a file cannot be read",
            shown(path),
            error.strerror or str(error),
            "make it readable, or name it in `.gpuinfraignore`",
        ) from error


@contextlib.contextmanager
def opened(root: bytes, path: str) -> Iterator[int]:
    """Open a file for `fill`. The handle is -1 if the file cannot be opened."""
    handle = -1
    with contextlib.suppress(OSError):
        handle = os.open(_full(root, path), OPEN)
    try:
        yield handle
    finally:
        if handle >= 0:
            os.close(handle)


def fill(handle: int, buffer: memoryview, offset: int) -> None:
    """Fill the buffer from this offset of a file, with zeros beyond its end. The target then rejects the digest."""
    done = 0
    with contextlib.suppress(OSError):
        while done < len(buffer) and (count := os.preadv(handle, [buffer[done:]], offset + done)):
            done += count
    buffer[done:] = bytes(len(buffer) - done)


def _full(root: bytes, path: str) -> bytes:
    return os.path.join(root, path.encode("utf-8", "surrogateescape"))


def _read_consistent(handle: int, path: str, keep: int, report: Callable[[int], None]) -> Content:
    before = os.fstat(handle)
    if not stat.S_ISREG(before.st_mode):
        raise UploadError("a file was replaced during the upload", shown(path), "it is no longer a regular file")
    size, digest = before.st_size, ""
    for _ in range(ATTEMPTS):
        data, found, length = _read_and_digest(handle, size, keep, report)
        after = os.fstat(handle)
        is_same = (before.st_size, before.st_mtime_ns, before.st_ctime_ns) == (
            after.st_size,
            after.st_mtime_ns,
            after.st_ctime_ns,
        )
        if length == size and (is_same or found == digest):
            return Content(after, size, found, data)
        before, digest, size = after, found, min(size, after.st_size) if length == size else after.st_size
    raise UploadError(
        "a file keeps changing",
        shown(path),
        f"it changed each of the {ATTEMPTS} times that it was read",
        "submit when no process writes to it, or name it in `.gpuinfraignore`",
    )


def _read_and_digest(handle: int, size: int, keep: int, report: Callable[[int], None]) -> tuple[bytes | None, str, int]:
    """Return the data if it is small, its digest, and how many bytes were read."""
    if size <= keep:
        data = os.pread(handle, size, 0) if size else b""
        report(len(data))
        return data, digest_of(data), len(data)
    whole, done = hashlib.sha256(), 0
    buffer = memoryview(bytearray(BLOCK))
    while done < size and (count := os.preadv(handle, [buffer[: size - done]], done)):
        whole.update(buffer[:count])
        done += count
        report(count)
    return None, whole.hexdigest()[:DIGEST_LETTERS], done


def shown(path: str) -> str:
    """Return a path that is safe to print: names can contain any bytes."""
    return path if path.isprintable() else path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


LEVEL = 1
SAMPLE = 8 << 10
# The speed of zlib on a slow core, in bytes per second, until it is measured.
SPEED = 50e6
# The best ratio to expect; a sample is compressed only if this would pay.
BEST_RATIO = 0.2
# Compression must save at least a tenth of the time, for the work of the target.
MAX_TIME_RATIO = 0.9
# The weight of a new measurement in the average.
WEIGHT = 0.2
# The first bytes only fill buffers on the way, so their rate is not measured.
BUFFERED = 4 << 20
# The first estimate of the rate, from the delay of a message: a machine nearby or a distant one.
NEAR_SECONDS, NEAR_RATE, FAR_RATE = 0.002, 500e6, 12e6


def pays(link: float, speed: float, ratio: float) -> bool:
    """Return whether compression at this speed and ratio saves time on this link. Rates are in bytes per second."""
    return 1 / speed + ratio / link < MAX_TIME_RATIO / link


class Compressor:
    """Compresses the parts of a stream if that saves time, as measured with earlier parts."""

    def __init__(self, delay: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._link = NEAR_RATE if delay < NEAR_SECONDS else FAR_RATE
        self._speed = SPEED
        self._sent = 0

    @property
    def link(self) -> float:
        """Return the measured or estimated rate of the link, in bytes per second."""
        return self._link

    def compress(self, data: memoryview) -> bytes | None:
        """Return the compressed part, or None to send it uncompressed."""
        if len(data) < SAMPLE // 8 or not pays(self._link, self._speed, BEST_RATIO):
            return None
        middle = max(0, len(data) // 2 - SAMPLE // 2)
        sample = data[middle : middle + SAMPLE]
        if not pays(self._link, self._speed, len(zlib.compress(sample, LEVEL)) / len(sample)):
            return None
        began = self._clock()
        small = zlib.compress(data, LEVEL)
        self._speed += WEIGHT * (len(data) / max(self._clock() - began, 1e-6) - self._speed)
        return small if len(small) < len(data) else None

    def note_sent(self, count: int, seconds: float) -> None:
        """Note how long it took to send this number of bytes."""
        self._sent += count
        if self._sent <= BUFFERED:
            return
        # Average times instead of rates, because one infinite rate would dominate forever.
        self._link = 1 / ((1 - WEIGHT) / self._link + WEIGHT * max(seconds, 1e-6) / count)
