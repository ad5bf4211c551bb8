"""The outputs of a job, brought here: what is new or has changed, in one stream, each file checked by its digest."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from gpuinfra.diagnostics import Code
from gpuinfra.remote.folder import own_name
from gpuinfra.remote.outputs import CHUNK, PACKED, digest
from gpuinfra.remote.wire import DATA, JSON
from gpuinfra.runner.connection.remote_client import Call, RemoteClient
from gpuinfra.runner.errors import ConnectError, JobError, job_errors
from gpuinfra.runner.outputs.store import LEAST_FILE_MODE, Stamp, Store
from gpuinfra.runner.progress import Progress, counted

STEP = "outputs"
LOCK = "outputs-lock"
# From this size on, a partial file is kept when the connection is lost.
LARGE = 8 << 20
# A file that came damaged is asked for again.
TRIES = 3
SILENCE_SECONDS = 90.0
LOCK_SECONDS, LOCK_PAUSE = 60.0, 0.1
BATCH = 1000
# In characters, of all paths that cannot be brought: more than people read, and not without end.
MOST_UNREADABLE = 16 << 20
# Files, folders and links. An index of so many files takes about half a gigabyte of memory.
MOST_ENTRIES = 1_000_000
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class Unreadable(NamedTuple):
    """Something in `outputs` that cannot be brought; a folder's path ends in a slash."""

    path: str
    reason: str
    """`permission` where the user there may not read it."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What is here now, and what came just now."""

    files: int
    size: int
    received_files: int
    received_bytes: int
    unreadable: tuple[Unreadable, ...]
    changed: int
    """Files that were being written, and were left for the next time."""
    gone: int
    """Files that are here and no longer there. They stay."""
    complete: bool
    """Whether, after the end of the job, all that can be read is here and every digest held."""


def fetch(remote: RemoteClient, run: str, into: Path, *, final: bool, progress: Progress | None = None) -> Fetched:
    """Bring what the folder `into` does not have yet. `final` is after the end of the job: then everything is compared
    by digest, and files that have only just been written count as well. Raises ConnectError and JobError."""
    with job_errors("the outputs cannot be read"), _local_errors(into), _only_one(into), Store(into) as store:
        if final and progress:
            progress.begin(STEP, "fetching")
        received = _Received()
        for _ in range(TRIES):
            call = Receiver(remote, run, store, received, progress if final else None)
            call.go(final=final)
            if not call.damaged:
                break
        found = Fetched(
            files=len(store.index.files),
            size=sum(stamp.size for stamp, _ in store.index.files.values()),
            received_files=received.files,
            received_bytes=received.size,
            unreadable=tuple(call.unreadable),
            changed=call.changed,
            gone=call.gone,
            complete=final and call.is_complete,
        )
        if final and progress:
            progress.end(STEP, counted(found.files, "file"))
        return found


@dataclass(slots=True)
class _Received:
    files: int = 0
    size: int = 0


@dataclass
class Receiver:
    """One call: says what is here, and takes what comes."""

    remote: RemoteClient
    run: str
    store: Store
    received: _Received
    progress: Progress | None
    unreadable: list[Unreadable] = field(default_factory=list)
    damaged: int = 0
    changed: int = 0
    gone: int = 0
    is_complete: bool = False
    _unreadable_size: int = 0
    _confirmed: int = 0
    _before: int = 0
    """Files that were here before this call."""
    _entries: int = 0
    """Files, folders and links that came with this call."""
    _done: int = 0
    _total: int | None = None

    def go(self, *, final: bool) -> None:
        """All of it."""
        request = {"run": self.run, "final": final}
        with self.remote.call("outputs", request, idle=SILENCE_SECONDS) as call:
            known = list(self.store.known())
            self._before, self._entries = len(known), 0
            _send_list(call, known)
            _send_list(call, list(self.store.parts_known()))
            self._confirmed = 0 if final else len(known)
            while "confirmed" not in (message := self._next(call)):
                self._take(call, message)
        self.changed, self.gone = int(message["changed"]), int(message["gone"])
        expected = int(message["confirmed"])
        self.is_complete = not self.damaged and not self.changed and self._confirmed == expected

    def _next(self, call: Call) -> dict[str, Any]:
        while True:
            kind, payload = call.receive()
            if kind == JSON:
                found: dict[str, Any] = json.loads(payload)
                return found

    def _take(self, call: Call, message: dict[str, Any]) -> None:
        if "file" in message:
            if message["file"] not in self.store.index.files:
                self._count()
            self._take_file(call, message)
        for path, size, mtime, ctime, content in message.get("same", ()):
            self._take_same(path, Stamp(size, mtime, ctime), content)
        for path, mode in message.get("folders", ()):
            self._count()
            self.store.folder.make(own_name(path), mode)
        for path, target in message.get("links", ()):
            self._count()
            self.store.folder.link(own_name(path), own_name(target))
        for path, reason in message.get("unreadable", ()):
            self._take_unreadable(Unreadable(own_name(path), str(reason)))
        self._total = message.get("total", self._total)

    def _count(self) -> None:
        """Count one more entry. Raises JobError if there are too many: a hostile machine never stops."""
        self._entries += 1
        if self._before + self._entries > MOST_ENTRIES:
            note = f"there are more than {MOST_ENTRIES:,} files, folders and links in `outputs`"
            help_line = "let the job write an archive instead; what was not fetched stays on the target"
            raise JobError("too many outputs", note, help_line, Code.OUTPUTS_INCOMPLETE)

    def _take_unreadable(self, found: Unreadable) -> None:
        self._unreadable_size += len(found.path) + len(found.reason) + 100  # what an object takes at least
        if self._unreadable_size > MOST_UNREADABLE:
            raise JobError("the target's answer makes no sense", "there is no end of files that cannot be read")
        self.unreadable.append(found)

    def _take_same(self, path: str, stamp: Stamp, content: str) -> None:
        known = self.store.index.files.get(path)
        if known is None or known[1] != content:
            raise JobError("the target's answer makes no sense", f"`{path}` is said to be the same", None)
        self._confirmed += 1
        self._tell(stamp.size)
        if known[0] != stamp:
            # It was only touched on the target; the index goes by its time.
            self.store.folder.touch(own_name(path), stamp.mtime)
            self.store.index.add_file(path, stamp, content)

    def _take_file(self, call: Call, message: dict[str, Any]) -> None:
        path, stamp, offset = message["file"], Stamp(*message["stamp"]), message["offset"]
        part = self.store.part(path)
        if stamp.size >= LARGE and self.store.index.parts.get(path) != stamp:
            self.store.index.add_part(path, stamp)
        is_kept = False
        try:
            trailer, content = self._receive(call, part, stamp, offset, message["mode"])
            if trailer.get("digest") == content:
                self.store.folder.place(part, own_name(path))
                is_kept = True
                self.store.index.add_file(path, stamp, content)
                self._confirmed += 1
                self.received.files += 1
            self.damaged += trailer.get("digest", content) != content
        except ConnectError:
            is_kept = stamp.size >= LARGE
            raise
        finally:
            if not is_kept:
                part.unlink(missing_ok=True)

    def _receive(self, call: Call, part: Path, stamp: Stamp, offset: int, mode: int) -> tuple[dict[str, Any], str]:
        """A file into its part; what the target says at its end, and the digest of what is here."""
        content = digest()
        with part.open("r+b" if offset else "wb") as file:
            _skip(file, offset, content)
            self._tell(offset)
            trailer = self._write(call, file, content, stamp.size - offset)
            file.flush()
            os.fchmod(file.fileno(), mode & 0o755 | LEAST_FILE_MODE)
            os.utime(file.fileno(), ns=(stamp.mtime, stamp.mtime))
        return trailer, content.hexdigest()

    def _write(self, call: Call, file: IO[bytes], content: Any, most: int) -> dict[str, Any]:
        """What comes of a file, up to the message after it."""
        while True:
            kind, payload = call.receive()
            if kind != DATA:
                found: dict[str, Any] = json.loads(payload)
                return found
            data = _unpacked(payload)
            most -= len(data)
            if most < 0:
                raise JobError("the target's answer makes no sense", "a file is longer than it was said to be")
            file.write(data)
            content.update(data)
            self.received.size += len(data)
            self._tell(len(data))

    def _tell(self, size: int) -> None:
        self._done += size
        if self.progress:
            self.progress.amount(STEP, self._done, self._total)


def _send_list(call: Call, values: list[list[Any]]) -> None:
    for start in range(0, len(values), BATCH):
        call.send(zlib.compress(json.dumps(values[start : start + BATCH]).encode(), 1))
    call.send(b"")


def _unpacked(payload: bytes) -> bytes:
    if payload[:1] != PACKED:
        return payload[1:]
    return zlib.decompressobj().decompress(payload[1:], CHUNK)


def _skip(file: IO[bytes], offset: int, content: Any) -> None:
    """Over what is here already, which belongs to the digest as well."""
    while offset:
        data = file.read(min(CHUNK, offset))
        if not data:
            raise JobError("a part of a file is gone", "files are removed while they are fetched", "try again")
        content.update(data)
        offset -= len(data)


@contextlib.contextmanager
def _only_one(into: Path) -> Iterator[None]:
    """Two who fetch into one folder would be in each other's way."""
    into.parent.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + LOCK_SECONDS
    with (into.parent / LOCK).open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends:
                    raise JobError(
                        "another process fetches the outputs", f"into `{into}`", "wait for it", Code.OUTPUTS_INCOMPLETE
                    ) from None
            time.sleep(LOCK_PAUSE)
        yield


@contextlib.contextmanager
def _local_errors(into: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in NO_SPACE:
            raise JobError(
                "the disk of this computer is full",
                f"the outputs do not fit into `{into}`",
                "make room, and then: `gpuinfra outputs ID`; nothing on the target was removed",
                Code.DISK_FULL,
            ) from error
        raise JobError("outputs cannot be written", f"`{into}`: {error}", None, Code.FILE_UNWRITABLE) from error
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise JobError("the target's answer makes no sense", str(error), None, Code.OUTPUTS_INCOMPLETE) from error
