"""One server per folder: a lock that ends with the process that holds it, even if that is killed."""

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SERVER, START = "server.lock", "start.lock"

# struct flock of Linux: type, whence, start, length, process.
_FLOCK = "hhqqi"


class LockedError(Exception):
    """Another process holds the lock, and did not release it in time."""


def take(folder: Path, name: str, *, seconds: float = 0.0) -> int:
    """Take a lock of the folder, until the descriptor is closed or the process ends; wait `seconds` for it.

    It is a record lock: children do not inherit it, and the kernel knows the holder.
    """
    deadline = time.monotonic() + seconds
    descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                os.close(descriptor)
                raise LockedError(f"another process holds {folder / name}") from None
            time.sleep(0.02)
        else:
            return descriptor


@contextmanager
def hold(folder: Path, name: str, *, seconds: float = 0.0) -> Iterator[None]:
    """Hold a lock within the context."""
    descriptor = take(folder, name, seconds=seconds)
    try:
        yield
    finally:
        os.close(descriptor)


def holder(folder: Path, name: str) -> int | None:
    """Return the process that holds a lock, from the kernel: a PID in a file may belong to another process by now."""
    try:
        stream = (folder / name).open("rb")
    except OSError:
        return None
    with stream:
        asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, process = struct.unpack(_FLOCK, fcntl.fcntl(stream, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else int(process)
