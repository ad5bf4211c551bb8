"""Slots, the work trees of a project, and staging: content that has arrived and has no place yet."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from gpuinfra.remote import home, processes
from gpuinfra.remote.home import remove_tree
from gpuinfra.remote.run_folder import STATE
from gpuinfra.remote.wire import RefusedError

# A run whose job has not begun by then will not begin: its client is gone.
MARK_SECONDS = 15 * 60.0
LOCK_SECONDS = 30.0
# A copy that no run has used for so long is removed by the next start, unless that start uses it.
UNUSED_SECONDS = 24 * 3600.0
# For the process that served the same run on a connection that is lost: it ends by itself, or is ended.
YIELD_SECONDS = 1.0
PATTERN = re.compile(r"slot-([1-9][0-9]{0,5})\Z")


class Lock:
    """A file that one process has, for as long as it lives. It says which one."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_now(self) -> bool:
        """Have it, unless another process has."""
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            return False
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, str(os.getpid()).encode(), 0)
        return True

    def wait(self, seconds: float) -> bool:
        """Take the lock within these seconds."""
        ends = time.monotonic() + seconds
        while not self.try_now():
            if time.monotonic() > ends:
                return False
            time.sleep(0.01)
        return True

    def take_over(self) -> bool:
        """Have it, and end the process that has it where it does not let go."""
        if self.wait(YIELD_SECONDS):
            return True
        with contextlib.suppress(ValueError, OSError):
            # It has the lock, so this is its number and not that of a process that came after it.
            os.kill(int(os.pread(self._handle, 20, 0)), signal.SIGKILL)
        return self.wait(LOCK_SECONDS)

    def fileno(self) -> int:
        """The file that has the lock."""
        return self._handle

    def close(self) -> None:
        """Let go of it."""
        os.close(self._handle)


class Slot:
    """A work tree that is ours for the time of an upload."""

    def __init__(self, folder: str, lock: Lock) -> None:
        self.folder, self._lock = folder, lock
        self.name = os.path.basename(folder)
        self.tree = os.path.join(folder, "tree")
        self.index = os.path.join(folder, "index")
        self.previous = holder(folder)
        """The run that had it before."""

    def mark(self, run: str) -> None:
        """It is held by this run, as of now."""
        new = os.path.join(self.folder, "holder.new")
        with open(new, "w") as file:
            file.write(run)
        os.replace(new, os.path.join(self.folder, "holder"))

    def touch(self) -> None:
        """The run is still about to begin."""
        with contextlib.suppress(OSError):
            os.utime(os.path.join(self.folder, "holder"))

    def close(self) -> None:
        """Others may look into it again; it stays held."""
        self._lock.close()


def holder(folder: str) -> str:
    """The run that a slot is held by; empty where there is none."""
    try:
        with open(os.path.join(folder, "holder")) as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def folders(project: str) -> list[str]:
    """The slots of a project, in order."""
    above = home.named("projects", project)
    found = [int(match.group(1)) for match in map(PATTERN.match, os.listdir(above)) if match]
    return [os.path.join(above, f"slot-{number}") for number in sorted(found)]


def take(project: str, run: str, abandoned: Sequence[str] = ()) -> Slot:
    """A slot for this run: the one it has, or one of an abandoned run, or one that is free, or a new one."""
    above = home.named("projects", project)
    home.run_folder(run)  # raises if it is not a name
    os.makedirs(above, exist_ok=True)
    choice = Lock(os.path.join(above, "lock"))
    try:
        if not choice.wait(LOCK_SECONDS):
            raise RefusedError("busy", "other uploads of this project do not let go of it")
        slot = _own(project, [run]) or _own(project, abandoned) or _free(project) or _new(project)
        slot.mark(run)
        return slot
    finally:
        choice.close()


def _own(project: str, runs: Sequence[str]) -> Slot | None:
    for folder in folders(project):
        if holder(folder) in runs:
            lock = Lock(os.path.join(folder, "lock"))
            if not lock.take_over():
                lock.close()
                raise RefusedError("busy", "an earlier upload of this run does not end")
            return Slot(folder, lock)
    return None


def _free(project: str) -> Slot | None:
    for folder in folders(project):
        if is_free(folder):
            lock = Lock(os.path.join(folder, "lock"))
            if lock.try_now():
                return Slot(folder, lock)
            lock.close()
    return None


def _new(project: str) -> Slot:
    taken = folders(project)
    number = int(taken[-1].rpartition("-")[2]) + 1 if taken else 1
    folder = home.named("projects", project, f"slot-{number}")
    os.mkdir(folder)
    lock = Lock(os.path.join(folder, "lock"))
    lock.try_now()  # no other process knows it yet
    return Slot(folder, lock)


def remove_unused(project: str) -> None:
    """Remove, in the background, copies that no run has used for a day."""
    for folder in folders(project):
        if _is_unused(folder):
            lock = Lock(os.path.join(folder, "lock"))
            try:
                if lock.try_now() and _is_unused(folder):
                    processes.detach(_emptier(folder), lock.fileno())
            finally:
                lock.close()


def _is_unused(folder: str) -> bool:
    """Whether it has a copy that no run needs. A copy with outputs that a job left in it is kept."""
    tree = os.path.join(folder, "tree")
    outputs = os.path.join(tree, "outputs")
    with contextlib.suppress(OSError):
        age = time.time() - os.stat(os.path.join(folder, "holder")).st_mtime
        has_outputs = not os.path.islink(outputs) and os.path.isdir(outputs) and bool(os.listdir(outputs))
        return age > UNUSED_SECONDS and bool(os.listdir(tree)) and not has_outputs and is_free(folder)
    return False


def _emptier(folder: str) -> Callable[..., None]:
    def empty(report: Callable[[dict[str, Any]], None]) -> None:
        report({})
        for name in ("tree", "staging"):
            # Files that a container's root made stay: the next upload to the slot has them removed.
            remove_tree(os.path.join(folder, name))

    return empty


def is_free(folder: str) -> bool:
    """Whether no run needs the slot."""
    run = holder(folder)
    try:
        return not run or _is_over(run, folder)
    except RefusedError:
        return True  # a mark that was never a run's


def _is_over(run: str, folder: str) -> bool:
    from gpuinfra.remote import jobs  # it is loaded after this module

    there = home.run_folder(run)
    age = time.time() - os.stat(os.path.join(folder, "holder")).st_mtime
    if age < MARK_SECONDS and os.path.isdir(there) and not os.path.exists(os.path.join(there, STATE)):
        # It was sent and has not begun. An upload renews the mark, however long it takes; who waits for something
        # else renews the run's folder, and that is for `jobs` to know.
        return False
    return bool(jobs.is_over(run))


BLOCK = 1 << 20
DIGEST_LETTERS = 32
# Of an upload that was not resumed.
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


class StagingArea:
    """The staging folder of the project, or of the slot if another upload uses that of the project."""

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
        """Remove what was not resumed for a week."""
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
