"""Staging: content that has come and is not placed yet, by its digest. A file that is too short is a beginning."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator

from gpuinfra.remote.slots import Lock, Slot

BLOCK = 1 << 20
DIGEST_LETTERS = 32
# Of an upload that nobody went on with.
FORGOTTEN_SECONDS = 7 * 24 * 3600.0


def digest_of(data: bytes | memoryview) -> str:
    """Of a whole content."""
    return hashlib.sha256(data).hexdigest()[:DIGEST_LETTERS]


def hashed(path: bytes | str, pulse: Callable[[], None]) -> str:
    """The digest of a file; of one that cannot be read, none that fits."""
    whole = hashlib.sha256()
    try:
        for part in _parts(path, pulse):
            whole.update(part)
    except OSError:
        return ""
    return whole.hexdigest()[:DIGEST_LETTERS]


class Staging:
    """The project's own, or where another upload has that in use, one of the slot's own."""

    def __init__(self, slot: Slot, pulse: Callable[[], None]) -> None:
        self._pulse = pulse
        self._lock = Lock(os.path.join(os.path.dirname(slot.folder), "staging.lock"))
        above = os.path.dirname(slot.folder) if self._lock.try_now() else slot.folder
        self._folder = os.path.join(above, "staging")
        os.makedirs(self._folder, exist_ok=True)
        with os.scandir(self._folder) as found:
            self._sizes = {each.name: each.stat(follow_symlinks=False).st_size for each in found}

    def path(self, digest: str) -> str:
        """Where a content is, or will be."""
        return os.path.join(self._folder, digest)

    def offset(self, digest: str, size: int) -> int:
        """How much of a content is here. What is whole is right as well."""
        there = self._sizes.get(digest, 0)
        if there < size:
            return there if there >= BLOCK else 0
        if there == size and hashed(self.path(digest), self._pulse) == digest:
            return size
        os.unlink(self.path(digest))
        return 0

    def write(self, digest: str, data: bytes | memoryview) -> None:
        """A whole content, which is right."""
        handle = os.open(self.path(digest), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            _write(handle, data)
        finally:
            os.close(handle)

    def append(self, digest: str, offset: int, parts: Iterable[memoryview]) -> bool:
        """The rest of a content, piece by piece; whether the whole is right then. What is not does not stay."""
        whole = hashlib.sha256()
        handle = os.open(self.path(digest), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(handle, offset)
            for begun in _parts(self.path(digest), self._pulse):
                whole.update(begun)
            os.lseek(handle, offset, os.SEEK_SET)
            for part in parts:
                _write(handle, part)
                whole.update(part)
                self._pulse()
        finally:
            os.close(handle)
        if whole.hexdigest()[:DIGEST_LETTERS] == digest:
            return True
        os.unlink(self.path(digest))
        return False

    def copy(self, digest: str, source: bytes) -> bool:
        """A content that is on this machine already; whether it is what it was taken for."""
        try:
            return self.append(digest, 0, _parts(source, self._pulse))
        except (FileNotFoundError, PermissionError):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(digest))
            return False

    def clean(self) -> None:
        """Remove what nobody went on with for a week."""
        for digest in self._sizes:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - os.stat(self.path(digest)).st_mtime > FORGOTTEN_SECONDS:
                    os.unlink(self.path(digest))

    def close(self) -> None:
        """Let others have it."""
        self._lock.close()


def _parts(path: bytes | str, pulse: Callable[[], None]) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(BLOCK))
    with open(path, "rb", buffering=0) as file:
        while True:
            count = file.readinto(buffer)
            if not count:
                return
            yield buffer[:count]
            pulse()


def _write(handle: int, data: bytes | memoryview) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]
