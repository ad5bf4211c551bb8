"""Fetch the outputs of a job: new and changed files, in one stream, each verified by its digest."""

from __future__ import annotations

import contextlib
import json
import os
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NamedTuple

from gpuinfra.diagnostics import Code
from gpuinfra.remote.folder_content import own_name
from gpuinfra.remote.home import try_lock
from gpuinfra.remote.outputs import CHUNK, PACKED, digest
from gpuinfra.remote.wire import DATA, JSON
from gpuinfra.runner.connection.remote_client import Call, RemoteClient
from gpuinfra.runner.errors import ConnectError, JobError, job_errors, write_error
from gpuinfra.runner.outputs import MIN_FILE_MODE, Stamp, Store
from gpuinfra.runner.progress import Progress, counted

STEP = "outputs"
LOCK = "outputs-lock"
# A partial file of at least this size is kept when the connection is lost.
LARGE = 8 << 20
# How often a file that arrives damaged is requested.
ATTEMPTS = 3
IDLE_SECONDS = 90.0
LOCK_SECONDS, LOCK_PAUSE = 60.0, 0.1
BATCH = 1000
# Limits the list of unreadable paths, in characters.
MAX_UNREADABLE = 16 << 20
# Files, folders and links. An index of this many files takes about half a gigabyte of memory.
MAX_ENTRIES = 1_000_000
UNEXPECTED = "unexpected reply from the target"


class Unreadable(NamedTuple):
    """A path in `outputs` that cannot be fetched. A folder's path ends with a slash."""

    path: str
    reason: str
    """`permission` if the user on the target cannot read it."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """The outputs on this computer after a fetch, and what the fetch transferred."""

    files: int
    size: int
    received_files: int
    received_bytes: int
    unreadable: tuple[Unreadable, ...]
    changed: int
    """Files that were being written, and are left for the next fetch."""
    gone: int
    """Files that are here but no longer on the target. They are kept."""
    complete: bool
    """Whether the job has ended, and every readable file is here with a correct digest."""
    folders: tuple[str, ...] = ()
    """The folders on the target that the outputs are in."""
    skipped: tuple[str, ...] = ()
    """Files that changed whenever they were read."""
    growing: tuple[str, ...] = ()
    """Files that are here as far as the job had written them, and that it may not have finished."""


def fetch(
    remote: RemoteClient,
    run: str,
    into: Path,
    *,
    final: bool,
    now: bool = False,
    progress: Progress | None = None,
) -> Fetched:
    """Fetch the outputs that the folder `into` does not have. Raises ConnectError and JobError.

    `final` means that the job has ended: all files are compared by digest, and recent files are fetched as well.
    `now` means that the job runs, and that files which it is writing are fetched as they are.
    """
    with job_errors("the outputs cannot be read"), _local_errors(into), _locked(into), Store(into) as store:
        if final and progress:
            progress.begin(STEP, "fetching")
        received = _Received()
        for _ in range(ATTEMPTS):
            call = Receiver(remote, run, store, received, progress if final else None)
            call.run(final=final, now=now)
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
            folders=tuple(call.folders),
            skipped=tuple(call.skipped),
            growing=tuple(call.growing),
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
    """One call: reports what is here, and receives the rest."""

    remote: RemoteClient
    run_id: str
    store: Store
    received: _Received
    progress: Progress | None
    unreadable: list[Unreadable] = field(default_factory=list)
    damaged: int = 0
    changed: int = 0
    gone: int = 0
    folders: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    growing: list[str] = field(default_factory=list)
    is_complete: bool = False
    _names_size: int = 0
    _confirmed: int = 0
    _before: int = 0
    """The number of files here before this call."""
    _entries: int = 0
    """The number of files, folders and links that arrived in this call."""
    _done: int = 0
    _total: int | None = None

    def run(self, *, final: bool, now: bool) -> None:
        """Make the call."""
        self.skipped, self.growing = [], []
        request = {"run": self.run_id, "final": final, **({"now": True} if now else {})}
        with self.remote.call("outputs", request, idle=IDLE_SECONDS) as call:
            known = list(self.store.known())
            self._before, self._entries = len(known), 0
            _send_list(call, known)
            _send_list(call, list(self.store.parts_known()))
            self._confirmed = 0 if final else len(known)
            while "confirmed" not in (message := self._next(call)):
                self._handle(call, message)
        self.changed, self.gone = int(message["changed"]), int(message["gone"])
        self.folders = [str(each) for each in message.get("own", ())]
        expected = int(message["confirmed"])
        self.is_complete = not self.damaged and not self.changed and self._confirmed == expected

    def _next(self, call: Call) -> dict[str, Any]:
        while True:
            kind, payload = call.receive()
            if kind == JSON:
                found: dict[str, Any] = json.loads(payload)
                return found

    def _handle(self, call: Call, message: dict[str, Any]) -> None:
        if "file" in message:
            if message["file"] not in self.store.index.files:
                self._count()
            self._receive_file(call, message)
        for path, size, mtime, ctime, content in message.get("same", ()):
            self._note_same(path, Stamp(size, mtime, ctime), content)
        for path, mode in message.get("folders", ()):
            self._count()
            self.store.folder.make(own_name(path), mode)
        for path, target in message.get("links", ()):
            self._count()
            self.store.folder.link(own_name(path), own_name(target))
        for path, reason in message.get("unreadable", ()):
            self._note_unreadable(Unreadable(own_name(path), str(reason)))
        for names, found in ((self.skipped, message.get("skipped", ())), (self.growing, message.get("growing", ()))):
            for path in found:
                self._limit_names(path)
                names.append(own_name(path))
        self._total = message.get("total", self._total)

    def _count(self) -> None:
        """Count one more entry. Raise JobError if there are too many, because a hostile machine may never stop."""
        self._entries += 1
        if self._before + self._entries > MAX_ENTRIES:
            note = f"there are more than {MAX_ENTRIES:,} files, folders and links in `outputs`"
            help_line = "let the job write an archive instead; files that were not fetched stay on the target"
            raise JobError("too many outputs", note, help_line, Code.OUTPUTS_INCOMPLETE)

    def _note_unreadable(self, found: Unreadable) -> None:
        self._limit_names(found.path, found.reason)
        self.unreadable.append(found)

    def _limit_names(self, *texts: str) -> None:
        self._names_size += sum(map(len, texts)) + 100  # the minimum size of an object
        if self._names_size > MAX_UNREADABLE:
            raise JobError(UNEXPECTED, "too many unreadable files")

    def _note_same(self, path: str, stamp: Stamp, content: str) -> None:
        known = self.store.index.files.get(path)
        if known is None or known[1] != content:
            note = f"the target reports `{path}` unchanged, but no such copy exists here"
            raise JobError(UNEXPECTED, note)
        self._confirmed += 1
        self._report(stamp.size)
        if known[0] != stamp:
            # Only its times have changed on the target.
            self.store.folder.touch(own_name(path), stamp.mtime)
            self.store.index.add_file(path, stamp, content)

    def _receive_file(self, call: Call, message: dict[str, Any]) -> None:
        path, stamp, offset = message["file"], Stamp(*message["stamp"]), message["offset"]
        part = self.store.part(path)
        if stamp.size >= LARGE and self.store.index.parts.get(path) != stamp:
            self.store.index.add_part(path, stamp)
        is_kept = False
        try:
            trailer, content = self._receive_content(call, part, stamp, offset, message["mode"])
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

    def _receive_content(
        self, call: Call, part: Path, stamp: Stamp, offset: int, mode: int
    ) -> tuple[dict[str, Any], str]:
        """Write a file's content to its partial file. Return the message after it, and the digest of what is here."""
        content = digest()
        with part.open("r+b" if offset else "wb") as file:
            _skip(file, offset, content)
            self._report(offset)
            trailer = self._write(call, file, content, stamp.size - offset)
            file.flush()
            os.fchmod(file.fileno(), mode & 0o755 | MIN_FILE_MODE)
            os.utime(file.fileno(), ns=(stamp.mtime, stamp.mtime))
        return trailer, content.hexdigest()

    def _write(self, call: Call, file: IO[bytes], content: Any, size: int) -> dict[str, Any]:
        """Write the content that arrives, and return the message after it."""
        while True:
            kind, payload = call.receive()
            if kind != DATA:
                found: dict[str, Any] = json.loads(payload)
                return found
            data = _unpack(payload)
            size -= len(data)
            if size < 0:
                raise JobError(UNEXPECTED, "a file is longer than announced")
            file.write(data)
            content.update(data)
            self.received.size += len(data)
            self._report(len(data))

    def _report(self, size: int) -> None:
        self._done += size
        if self.progress:
            self.progress.amount(STEP, self._done, self._total)


def _send_list(call: Call, values: list[list[Any]]) -> None:
    for start in range(0, len(values), BATCH):
        call.send(zlib.compress(json.dumps(values[start : start + BATCH]).encode(), 1))
    call.send(b"")


def _unpack(payload: bytes) -> bytes:
    if payload[:1] != PACKED:
        return payload[1:]
    return zlib.decompressobj().decompress(payload[1:], CHUNK)


def _skip(file: IO[bytes], offset: int, content: Any) -> None:
    """Skip the part of a file that is already here, and add it to the digest."""
    while offset:
        data = file.read(min(CHUNK, offset))
        if not data:
            raise JobError("a partial file is missing", "it was removed during the fetch", "try again")
        content.update(data)
        offset -= len(data)


@contextlib.contextmanager
def _locked(into: Path) -> Iterator[None]:
    """Lock the folder, so that only one process fetches into it."""
    into.parent.mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + LOCK_SECONDS
    with (into.parent / LOCK).open("w") as lock:
        while not try_lock(lock.fileno()):
            if time.monotonic() > ends:
                summary, help_line = "another process is fetching the outputs", "wait until it has finished"
                raise JobError(summary, f"into `{into}`", help_line, Code.OUTPUTS_INCOMPLETE)
            time.sleep(LOCK_PAUSE)
        yield


@contextlib.contextmanager
def _local_errors(into: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        remedy = "free some space, then run `gpuinfra outputs ID`; nothing on the target was removed"
        raise write_error(error, "outputs cannot be written", into, remedy) from error
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise JobError(UNEXPECTED, str(error), None, Code.OUTPUTS_INCOMPLETE) from error
