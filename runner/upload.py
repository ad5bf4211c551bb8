"""Send a project: the target reports what it lacks, and receives that in one stream."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuinfra.remote.wire import DATA
from gpuinfra.runner.connection.remote_client import Call, RemoteClient
from gpuinfra.runner.content import Compressor, fill, opened, read, shown
from gpuinfra.runner.errors import RemoteError, UploadError
from gpuinfra.runner.progress import Progress, counted
from gpuinfra.runner.project_tree import FILE, Entry, Tree

PART = 256 << 10
# The first byte of a part: how the rest is encoded.
UNCOMPRESSED, COMPRESSED = b"\0", b"\1"


class ContentStream:
    """Sends content in parts of equal size. It has no file boundaries, because both sides know the sizes."""

    def __init__(self, call: Call, compressor: Compressor, report: Callable[[int], None]) -> None:
        self._call, self._compressor, self._report = call, compressor, report
        self._buffer = memoryview(bytearray(UNCOMPRESSED + bytes(PART)))
        self._end = 1
        self._done = 0

    def add(self, data: memoryview) -> None:
        """Add content that is in memory."""
        while data:
            room = self._room(len(data))
            room[:] = data[: len(room)]
            data = data[len(room) :]
            self._end += len(room)

    def add_file(self, root: bytes, entry: Entry, offset: int) -> None:
        """Add the content of a file from this offset."""
        with opened(root, entry.path) as handle:
            while offset < entry.size:
                room = self._room(entry.size - offset)
                fill(handle, room, offset)
                offset += len(room)
                self._end += len(room)

    def flush(self) -> None:
        """Send the content that was added."""
        part = self._buffer[1 : self._end]
        if not part:
            return
        small = self._compressor.compress(part)
        message = self._buffer[: self._end] if small is None else COMPRESSED + small
        began = time.perf_counter()
        self._call.send(message)
        self._compressor.note_sent(len(message), time.perf_counter() - began)
        self._done += len(part)
        self._report(self._done)
        self._end = 1

    def _room(self, limit: int) -> memoryview:
        if self._end == len(self._buffer):
            self.flush()
        return self._buffer[self._end : self._end + limit]


STEP = "upload"
# How often a project that changes during the upload is sent again.
ATTEMPTS = 3
MAX_ANSWER = 64 << 20


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A project that is on the target."""

    slot: str
    """The name of the slot that the run holds."""
    tree: str
    """The folder in which the job runs, an absolute path on the target."""
    sent_files: int
    sent_bytes: int
    """Bytes of content, before compression."""
    seconds: float


def upload(  # noqa: PLR0913 all but two by name
    remote: RemoteClient,
    tree: Tree,
    *,
    project: str,
    run: str,
    progress: Progress,
    first_heartbeat: dict[str, Any] | None = None,
    abandoned: Sequence[str] = (),
    more_outputs: Sequence[str] = (),
) -> Uploaded:
    """Copy a project to a slot on the target, for a run. A call after a failure resumes the upload.

    `first_heartbeat` is that of `runner.heartbeat`, recorded before anything is sent. `abandoned` are runs
    of this project that never started and whose clients have ended: their slots are used, and their folders removed.
    `more_outputs` are folders at the top of the project, besides `outputs`, for outputs.

    Raises UploadError, ConnectError, and RemoteError: disk-full; busy; foreign-files, whose message is the path of the
    folder that root must empty before the next call.
    """
    began = time.monotonic()
    progress.begin(STEP, "comparing")
    request = {
        "project": project,
        "run": run,
        **({} if first_heartbeat is None else {"heartbeat": first_heartbeat}),
        **({"abandoned": list(abandoned)} if abandoned else {}),
        **({"moreOutputs": list(more_outputs)} if more_outputs else {}),
    }
    try:
        found, files, size = _send_until_stable(remote, tree, request, progress)
    except (UploadError, RemoteError) as error:
        progress.fail(STEP, str(error))
        raise
    progress.end(STEP, f"{files} of {counted(tree.files, 'file')}")
    return Uploaded(found["slot"], found["tree"], files, size, time.monotonic() - began)


def _send_until_stable(
    remote: RemoteClient, tree: Tree, request: dict[str, Any], progress: Progress
) -> tuple[dict[str, Any], int, int]:
    """Return the answer, and how many files and bytes were sent. Files that change meanwhile are sent again."""
    files = size = 0
    for _ in range(ATTEMPTS):
        sender = _Sender(tree, progress)
        found = sender.send(remote, request)
        files, size = files + sender.files, size + sender.size
        if not sender.changed:
            return found, files, size
        tree = _reread(tree, sender.changed)
    raise UploadError(
        "the project keeps changing",
        shown(sender.changed[0].path),
        "it changed during every upload",
        "submit when no process writes to it, or name it in `.gpuinfraignore`",
    )


def _reread(tree: Tree, changed: list[Entry]) -> Tree:
    root = os.path.realpath(os.fsencode(tree.root))
    for entry in changed:
        if not os.path.lexists(os.path.join(root, entry.path.encode("utf-8", "surrogateescape"))):
            tree = tree.without(entry.path)
            continue
        found = read(root, entry.path, 0, lambda _: None)
        tree = tree.replacing(entry._replace(size=found.size, content=found.digest))
    return tree


class _Sender:
    """Sends a project in one call."""

    def __init__(self, tree: Tree, progress: Progress) -> None:
        self._tree, self._progress = tree, progress
        self.files = self.size = 0
        self.changed: list[Entry] = []

    def send(self, remote: RemoteClient, request: dict[str, Any]) -> dict[str, Any]:
        with remote.call("tree-put", {**request, "digest": self._tree.digest}) as call:
            began = time.monotonic()
            found = call.receive_json()
            try:
                delay = time.monotonic() - began - float(found["seconds"])
            except (TypeError, ValueError):
                raise RemoteError("protocol", "unexpected reply from the target to an upload") from None
            if not found["same"]:
                self._send_missing(call, Compressor(delay))
            return found

    def _send_missing(self, call: Call, compressor: Compressor) -> None:
        for batch in self._tree.batches:
            call.send(zlib.compress(batch, 1))
        call.send_json({})
        by_digest = {entry.content: entry for entry in self._tree.entries if entry.kind == FILE}
        missing = [(by_digest[digest], offset) for digest, offset in _receive_missing(call)]
        total = sum(entry.size - offset for entry, offset in missing)
        self._progress.begin(STEP, f"sending {len(missing)} of {counted(self._tree.files, 'file')}")
        stream = ContentStream(call, compressor, lambda done: self._progress.amount(STEP, done, total))
        root = os.path.realpath(os.fsencode(self._tree.root))
        for entry, offset in missing:
            data = self._tree.pool.get(entry.content)
            if data is not None:
                stream.add(memoryview(data)[offset:])
            else:
                stream.add_file(root, entry, offset)
        stream.flush()
        call.send_json({})
        self.files, self.size = len(missing), total
        bad = set(_receive_answer(call)["bad"])
        self.changed = [entry for entry, _ in missing if entry.content in bad]


def _receive_missing(call: Call) -> list[tuple[str, int]]:
    while True:
        kind, payload = call.receive()
        if kind == DATA:
            return [(digest, offset) for digest, offset in json.loads(_decompress(payload))]


def _decompress(payload: bytes) -> bytes:
    """Decompress an answer of the target. The limit keeps a hostile target from filling the memory."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(payload, MAX_ANSWER)
    if unpacker.unconsumed_tail:
        raise RemoteError("too-large", f"the target's reply is larger than {MAX_ANSWER >> 20} MiB")
    return data


def _receive_answer(call: Call) -> dict[str, Any]:
    while "bad" not in (found := call.receive_json()):
        pass  # only a report that work continues
    return found
