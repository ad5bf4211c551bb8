"""A consistent copy of a file that a job may be writing."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from collections.abc import Callable

CHUNK = 1 << 20
# If the system does not say whether a file is being written, one that was quiet for this long counts as complete.
SETTLED_SECONDS = 1.0


def is_being_written(number: int) -> bool:
    """Return whether a process has this open file open for writing, or may have it."""
    # A process that opens it for writing during the next two calls would send this signal.
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    try:
        fcntl.fcntl(number, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(number, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError as error:
        if error.errno == errno.EAGAIN:
            return True
        # The file belongs to another user, such as a container's root, or the file system has no leases.
        return time.time() - os.fstat(number).st_mtime < SETTLED_SECONDS
    return False


def copy_of(number: int, folder: str, size: int, pulse: Callable[[], None]) -> int:
    """Return an open file in the folder, without a name, with the first bytes of another one. It may be shorter."""
    path = os.path.join(folder, f"snapshot-{os.getpid()}")
    copy = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.unlink(path)
        start = 0
        while start < size:
            data = os.pread(number, min(CHUNK, size - start), start)
            if not data:
                break
            start += len(data)
            while data:
                data = data[os.write(copy, data) :]
            pulse()
    except BaseException:
        os.close(copy)
        raise
    return copy


def begins_with(number: int, copy: int, pulse: Callable[[], None]) -> bool:
    """Return whether an open file still begins with the content of its copy: only its end has changed."""
    start = 0
    while True:
        expected = os.pread(copy, CHUNK, start)
        if not expected:
            return True
        if os.pread(number, len(expected), start) != expected:
            return False
        start += len(expected)
        pulse()
