"""Send a project: the target says what it lacks, and gets that in one stream."""

from __future__ import annotations

import json
import os
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gpuinfra.remote.wire import DATA
from gpuinfra.runner.connection.remote_client import Call, RemoteClient
from gpuinfra.runner.errors import RemoteError, UploadError
from gpuinfra.runner.progress import Progress, counted
from gpuinfra.runner.upload.content import fill, opened, read, shown
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
    """Make a work tree on the target equal to this one, for a run. Called again after a failure, it resumes.

    `attended` is the first heartbeat (`runner.jobs.heartbeat`), recorded before anything is sent. `abandoned` are runs
    of this project that never began and whose clients are gone: what they left is used or removed.

    Raises UploadError, ConnectError, and RemoteError: disk-full; busy; foreign-files, whose message is the path of the
    folder that root has to empty before the next call.
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
        sending = _Sender(tree, progress)
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


class _Sender:
    """One call."""

    def __init__(self, tree: Tree, progress: Progress) -> None:
        self._tree, self._progress = tree, progress
        self.files = self.size = 0
        self.changed: list[Entry] = []

    def make(self, remote: RemoteClient, request: dict[str, Any]) -> dict[str, Any]:
        with remote.call("tree-put", {**request, "digest": self._tree.digest}) as call:
            began = time.monotonic()
            found = call.receive_json()
            try:
                delay = time.monotonic() - began - float(found["seconds"])
            except (TypeError, ValueError):
                raise RemoteError("protocol", "the target's answer to the upload makes no sense") from None
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


PART = 256 << 10
# The first byte of a part says how the rest is encoded.
AS_IT_IS, COMPRESSED = b"\0", b"\1"


class Stream:
    """What is added goes out as soon as a part is full. Nothing in it says where a file ends: both sides know that."""

    def __init__(self, call: Call, squeeze: Squeeze, told: Callable[[int], None]) -> None:
        self._call, self._squeeze, self._told = call, squeeze, told
        self._buffer = memoryview(bytearray(AS_IT_IS + bytes(PART)))
        self._end = 1
        self._done = 0

    def add(self, data: memoryview) -> None:
        """A content, or the rest of it, that is at hand."""
        while data:
            room = self._room(len(data))
            room[:] = data[: len(room)]
            data = data[len(room) :]
            self._end += len(room)

    def add_file(self, root: bytes, entry: Entry, offset: int) -> None:
        """The content of a file from there on."""
        with opened(root, entry.path) as handle:
            while offset < entry.size:
                room = self._room(entry.size - offset)
                fill(handle, room, offset)
                offset += len(room)
                self._end += len(room)

    def flush(self) -> None:
        """What was added is on its way then."""
        part = self._buffer[1 : self._end]
        if not part:
            return
        small = self._squeeze.compress(part)
        message = self._buffer[: self._end] if small is None else COMPRESSED + small
        began = time.perf_counter()
        self._call.send(message)
        self._squeeze.sent(len(message), time.perf_counter() - began)
        self._done += len(part)
        self._told(self._done)
        self._end = 1

    def _room(self, most: int) -> memoryview:
        if self._end == len(self._buffer):
            self.flush()
        return self._buffer[self._end : self._end + most]


LEVEL = 1
SAMPLE = 8 << 10
# What zlib does on a slow core; measured as soon as it has something to do.
SPEED = 50e6
# No content that is worth a thought gets smaller than this.
BEST_RATIO = 0.2
# It has to win something for the work on the remote side.
WORTH = 0.9
# How much the latest measurement counts against those before it.
WEIGHT = 0.2
# What is sent first only goes into buffers and windows on the way, and says nothing of the link.
BUFFERED = 4 << 20
# A first guess by the time that a message needs: a machine next door, or one across the country.
NEAR_SECONDS, NEAR_RATE, FAR_RATE = 0.002, 500e6, 12e6


def pays(link: float, speed: float, ratio: float) -> bool:
    """Whether to compress at this speed, to this part of the size, is quicker than not to. Rates in bytes a second."""
    return 1 / speed + ratio / link < WORTH / link


class Squeeze:
    """Decides for each part of a stream, by what the parts before it took."""

    def __init__(self, delay: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._link = NEAR_RATE if delay < NEAR_SECONDS else FAR_RATE
        self._speed = SPEED
        self._sent = 0

    @property
    def link(self) -> float:
        """The rate of the link, in bytes a second, as far as is known."""
        return self._link

    def compress(self, data: memoryview) -> bytes | None:
        """The part, smaller; None where it had better be sent as it is."""
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

    def sent(self, count: int, seconds: float) -> None:
        """Record that these bytes were sent in this time."""
        self._sent += count
        if self._sent <= BUFFERED:
            return
        # By times, not by rates: a rate that was infinitely high once would count for ever.
        self._link = 1 / ((1 - WEIGHT) / self._link + WEIGHT * max(seconds, 1e-6) / count)
