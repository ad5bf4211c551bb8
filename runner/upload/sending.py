"""The sending: one call, in which the target says what it lacks, and one stream of that."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpuinfra.remote.wire import DATA
from gpuinfra.runner.machine.remote_client import Call, RemoteClient, RemoteError
from gpuinfra.runner.progress import Progress, counted
from gpuinfra.runner.upload.compression import Squeeze
from gpuinfra.runner.upload.content import read
from gpuinfra.runner.upload.errors import UploadError, shown
from gpuinfra.runner.upload.stream import Stream
from gpuinfra.runner.upload.tree import FILE, Entry, Tree

STEP = "upload"
# Of a project that changes while it is sent.
ATTEMPTS = 3
MOST_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Uploaded:
    """A project that is on the target."""

    slot: str
    """The name of the slot that the run holds."""
    tree: str
    """The folder that the job runs in, a whole path on the target."""
    outputs: str
    """The folder that its outputs go to, a whole path on the target."""
    sent_files: int
    sent_bytes: int
    """Of content, before it was compressed."""
    seconds: float


def upload(  # noqa: PLR0913 all but two by name
    remote: RemoteClient,
    tree: Tree,
    *,
    project: str,
    run: str,
    outputs: Literal["link", "mount"],
    progress: Progress,
    attended: dict[str, Any] | None = None,
    abandoned: Sequence[str] = (),
) -> Uploaded:
    """Make a work tree on the target equal to this one, for a run. Called again after a failure, it goes on.

    `attended` is said there before anything is sent: see `runner.heartbeat`. `abandoned` are runs of this project that
    never began and whose clients are gone: what they left is used or removed.

    Raises UploadError, ConnectError, and FarError: disk-full; busy; foreign-files, whose message is the path of the
    folder that has to be emptied by somebody with more rights before it is called again.
    """
    began = time.monotonic()
    progress.begin(STEP, "comparing")
    request = {
        "project": project,
        "run": run,
        "outputs": outputs,
        **({} if attended is None else {"attended": attended}),
        **({"abandoned": list(abandoned)} if abandoned else {}),
    }
    try:
        found, files, size = _settled(remote, tree, request, progress)
    except (UploadError, RemoteError) as error:
        progress.fail(STEP, str(error))
        raise
    progress.end(STEP, f"{files} of {counted(tree.files, 'file')}")
    return Uploaded(found["slot"], found["tree"], found["outputs"], files, size, time.monotonic() - began)


def _settled(
    remote: RemoteClient, tree: Tree, request: dict[str, Any], progress: Progress
) -> tuple[dict[str, Any], int, int]:
    """Return the answer, and how many files and bytes were sent. What changed meanwhile is read and sent again."""
    files = size = 0
    for _ in range(ATTEMPTS):
        sending = _Sending(tree, progress)
        found = sending.make(remote, request)
        files, size = files + sending.files, size + sending.size
        if not sending.changed:
            return found, files, size
        tree = _reread(tree, sending.changed)
    raise UploadError(
        "the project keeps changing",
        shown(sending.changed[0].path),
        "it changed each time while it was sent",
        "submit when nothing writes to it, or name it in `.gpuinfraignore`",
    )


def _reread(tree: Tree, changed: list[Entry]) -> Tree:
    root = os.path.realpath(os.fsencode(tree.root))
    for entry in changed:
        if not os.path.lexists(os.path.join(root, entry.path.encode("utf-8", "surrogateescape"))):
            tree = tree.without(entry.path)
            continue
        found = read(root, entry.path, 0, lambda _: None)
        tree = tree.having(entry._replace(size=found.size, content=found.digest))
    return tree


class _Sending:
    """One call."""

    def __init__(self, tree: Tree, progress: Progress) -> None:
        self._tree, self._progress = tree, progress
        self.files = self.size = 0
        self.changed: list[Entry] = []

    def make(self, remote: RemoteClient, request: dict[str, Any]) -> dict[str, Any]:
        with remote.call("tree-put", {**request, "digest": self._tree.digest}) as call:
            began = time.monotonic()
            found = call.receive_json()
            delay = time.monotonic() - began - found["seconds"]
            if not found["same"]:
                self._send(call, Squeeze(delay))
            return found

    def _send(self, call: Call, squeeze: Squeeze) -> None:
        for batch in self._tree.batches:
            call.send(zlib.compress(batch, 1))
        call.send_json({})
        by_digest = {entry.content: entry for entry in self._tree.entries if entry.kind == FILE}
        wanted = [(by_digest[digest], offset) for digest, offset in _wanted(call)]
        total = sum(entry.size - offset for entry, offset in wanted)
        self._progress.begin(STEP, f"sending {len(wanted)} of {counted(self._tree.files, 'file')}")
        stream = Stream(call, squeeze, lambda done: self._progress.amount(STEP, done, total))
        root = os.path.realpath(os.fsencode(self._tree.root))
        for entry, offset in wanted:
            data = self._tree.pool.get(entry.content)
            if data is not None:
                stream.add(memoryview(data)[offset:])
            else:
                stream.add_file(root, entry, offset)
        stream.flush()
        call.send_json({})
        self.files, self.size = len(wanted), total
        bad = set(_answer(call)["bad"])
        self.changed = [entry for entry, _ in wanted if entry.content in bad]


def _wanted(call: Call) -> list[tuple[str, int]]:
    while True:
        kind, payload = call.receive()
        if kind == DATA:
            return [(digest, offset) for digest, offset in json.loads(_decompress(payload))]


def _decompress(payload: bytes) -> bytes:
    """Return what a target sent, decompressed. A few bytes of a hostile target could fill the memory otherwise."""
    unpacker = zlib.decompressobj()
    data = unpacker.decompress(payload, MOST_BYTES)
    if unpacker.unconsumed_tail:
        raise RemoteError("too-large", f"it answered with more than {MOST_BYTES >> 20} MiB")
    return data


def _answer(call: Call) -> dict[str, Any]:
    while "bad" not in (found := call.receive_json()):
        pass  # it only says that it is still there
    return found
