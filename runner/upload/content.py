"""The content of files: read for the digest, and again for what the target lacks. An index remembers digests."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from gpuinfra.runner.errors import UploadError

# SHA-256 is twice as fast as BLAKE2b on processors of the last years (1,450 against 650 MiB/s here), and fast enough
# on older ones. Half of it is enough: no one forges these files.
DIGEST_LETTERS = 32
BLOCK = 1 << 20
# Of a file that changes while it is read.
ATTEMPTS = 5
# A file may have become a pipe or a link in the meantime: neither waited for nor followed.
OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Content(NamedTuple):
    """What was in a file."""

    stat: os.stat_result
    size: int
    digest: str
    data: bytes | None
    """All of it, if the file is not larger than requested."""


def digest_of(data: bytes) -> str:
    """Of a whole content."""
    return hashlib.sha256(data).hexdigest()[:DIGEST_LETTERS]


def read(root: bytes, path: str, keep: int, told: Callable[[int], None]) -> Content:
    """A file's content, never a mix of two: of one that changes meanwhile, what was twice the same is taken, so that
    a log that grows can be sent as far as it was."""
    try:
        handle = os.open(_full(root, path), OPEN)
        try:
            return _steady(handle, path, keep, told)
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
    """A file for `fill`; -1 if it can no longer be opened."""
    handle = -1
    with contextlib.suppress(OSError):
        handle = os.open(_full(root, path), OPEN)
    try:
        yield handle
    finally:
        if handle >= 0:
            os.close(handle)


def fill(handle: int, buffer: memoryview, offset: int) -> None:
    """Fill the buffer from this offset of a file; with zeros where the file has become shorter."""
    done = 0
    with contextlib.suppress(OSError):
        while done < len(buffer) and (count := os.preadv(handle, [buffer[done:]], offset + done)):
            done += count
    buffer[done:] = bytes(len(buffer) - done)


def _full(root: bytes, path: str) -> bytes:
    return os.path.join(root, path.encode("utf-8", "surrogateescape"))


def _steady(handle: int, path: str, keep: int, told: Callable[[int], None]) -> Content:
    before = os.fstat(handle)
    if not stat.S_ISREG(before.st_mode):
        raise UploadError("a file has become something else", shown(path), "it is no longer a file")
    size, digest = before.st_size, ""
    for _ in range(ATTEMPTS):
        data, found, length = _digested(handle, size, keep, told)
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
        f"it was read {ATTEMPTS} times, and never twice the same",
        "submit when nothing writes to it, or name it in `.gpuinfraignore`",
    )


def _digested(handle: int, size: int, keep: int, told: Callable[[int], None]) -> tuple[bytes | None, str, int]:
    """The data, its digest, and how many bytes there were, which may be fewer."""
    if size <= keep:
        data = os.pread(handle, size, 0) if size else b""
        told(len(data))
        return data, digest_of(data), len(data)
    whole, done = hashlib.sha256(), 0
    buffer = memoryview(bytearray(BLOCK))
    while done < size and (count := os.preadv(handle, [buffer[: size - done]], done)):
        whole.update(buffer[:count])
        done += count
        told(count)
    return None, whole.hexdigest()[:DIGEST_LETTERS], done


INDEX_FILE = "upload-index"
INDEX_FORMAT = 2
# A file that changes twice in a tick of the clock looks the same afterwards; git has the same trouble and remedy.
RACY_NS = 2_000_000_000


def stamp_of(stat: os.stat_result) -> str:
    """Return what identifies a file as the one that was read. Text, for ten thousand lists are slow to read back."""
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino} "


class Index:
    """Digests by path. Where there is no folder to keep it in, nothing is remembered."""

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / INDEX_FILE if folder else None
        self._before = _read(self._file) if self._file else {}
        self._now: dict[str, str] = {}

    def digest(self, path: str, stat: os.stat_result) -> str | None:
        """Of a file that is as it was when it was read."""
        entry, same = self._before.get(path), stamp_of(stat)
        if entry is None or not entry.startswith(same):
            return None
        self._now[path] = entry
        return entry[len(same) :]

    def remember(self, path: str, stat: os.stat_result, digest: str, read_at_ns: int) -> None:
        """A file that was read at that time, unless it could have changed since without a trace."""
        if max(stat.st_mtime_ns, stat.st_ctime_ns) < read_at_ns - RACY_NS:
            self._now[path] = stamp_of(stat) + digest

    def save(self) -> None:
        """For the next time. It is a help and no more: where it cannot be written, all is read again."""
        if self._file is None or self._now == self._before:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{INDEX_FILE}-", dir=self._file.parent)
            try:
                with os.fdopen(handle, "w") as file:
                    file.write(json.dumps({"format": INDEX_FORMAT, "files": self._now}, separators=(",", ":")))
                Path(name).replace(self._file)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise


def _read(file: Path) -> dict[str, str]:
    try:
        found = json.loads(file.read_bytes())
        entries = found["files"] if found["format"] == INDEX_FORMAT else {}
        if set(map(type, entries.values())) <= {str}:
            return dict(entries)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # a broken one is as good as none
    return {}


def shown(path: str) -> str:
    """A path that may be printed: a name can have any bytes in it."""
    return path if path.isprintable() else path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
