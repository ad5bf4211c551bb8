"""A project comes in: the digest of all of it first, then every entry, then one stream of what is missing here."""

from __future__ import annotations

import contextlib
import gc
import json
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from gpuinfra.remote import heartbeat, slots, states
from gpuinfra.remote.slots import BLOCK, StagingArea, digest_of
from gpuinfra.remote.wire import DATA, GoneError, RefusedError, Wire
from gpuinfra.remote.work_tree import WorkTree

PULSE_SECONDS = 5.0
# The first byte of a part says how the rest is encoded.
COMPRESSED = 1


class Pulse:
    """Tells the client and other uploads that work continues."""

    def __init__(self, wire: Wire, slot: slots.Slot) -> None:
        self._wire, self._slot, self._last = wire, slot, time.monotonic()

    def __call__(self) -> None:
        """Report it from time to time. Cheap to call often."""
        now = time.monotonic()
        if now - self._last > PULSE_SECONDS:
            self._last = now
            self._slot.touch()
            self._wire.send_json({"busy": True})


class Source:
    """The content of one file after the other, out of messages that know nothing of files."""

    def __init__(self, wire: Wire, present: Callable[[], None]) -> None:
        self._wire, self._present, self._held = wire, present, memoryview(b"")

    def take(self, count: int) -> bytes | memoryview:
        """Return this many bytes at once."""
        if count > len(self._held):
            return b"".join(self.parts(count))
        found, self._held = self._held[:count], self._held[count:]
        return found

    def parts(self, count: int) -> Iterator[memoryview]:
        """Yield this many bytes as they arrive."""
        while count:
            if not self._held:
                self._held = self._next()
            part = self._held[:count]
            self._held = self._held[len(part) :]
            count -= len(part)
            yield part

    def end(self) -> None:
        """All has come."""
        self._wire.receive_json()

    def _next(self) -> memoryview:
        kind, payload = self._wire.receive()
        self._present()
        if kind != DATA or len(payload) < 2:
            raise RefusedError("protocol", "content was expected, and something else came")
        body = memoryview(payload)[1:]
        return memoryview(zlib.decompress(body)) if payload[0] == COMPRESSED else body


def put(wire: Wire, request: dict[str, Any]) -> None:
    """Make a slot's tree equal to a project."""
    began = time.monotonic()
    # There are no circles to be found, and a hundred thousand things to look for them in.
    gc.disable()
    abandoned = [run for run in request.get("abandoned", ()) if states.read(run) is None]
    slot = slots.take(request["project"], request["run"], abandoned)
    try:
        _forget(abandoned)
        tree = WorkTree(slot, Pulse(wire, slot))
        with tree.permitted():
            is_already = tree.is_already(request["digest"])
            outputs = tree.give_outputs(request["run"], request["outputs"])
        if "attended" in request:
            heartbeat.note(request["run"], request["attended"])
        answer = {"slot": slot.name, "tree": slot.tree, "outputs": outputs, "same": is_already}
        wire.send_json({**answer, "seconds": time.monotonic() - began})
        if not is_already:
            _bring(wire, tree, request["digest"], heartbeat.Presence(request["run"]))
        slot.touch()
        with contextlib.suppress(OSError, RefusedError):  # the next start tries again
            slots.remove_unused(request["project"])
    finally:
        slot.close()
        gc.enable()


def _forget(runs: list[str]) -> None:
    """Remove what is kept of runs that never began."""
    for run in runs:
        from gpuinfra.remote import jobs  # most starts need none of it

        jobs.remove(run)


def _bring(wire: Wire, tree: WorkTree, digest: str, present: Callable[[], None]) -> None:
    tree.expect(_entries(wire))
    staging = StagingArea(tree.slot, Pulse(wire, tree.slot))
    try:
        with tree.permitted():
            wanted = tree.clear(staging)
        need = sum(tree.sizes[each] - offset for each, offset in wanted)
        free = shutil.disk_usage(tree.slot.folder).free
        if need > free:
            raise RefusedError("disk-full", f"the project needs {need} bytes more, and {free} are free")
        wire.send(DATA, zlib.compress(json.dumps(wanted).encode(), 1))
        wire.flush()
        with tree.permitted():
            bad = _received(Source(wire, present), tree, staging, wanted)
            if not bad:
                tree.finish(digest)
        staging.clean()
        wire.send_json({"bad": bad})
    finally:
        staging.close()


def _entries(wire: Wire) -> list[list[Any]]:
    entries: list[list[Any]] = []
    while True:
        kind, payload = wire.receive()
        if kind != DATA:
            return entries
        entries += json.loads(zlib.decompress(payload))


def _received(source: Source, tree: WorkTree, staging: StagingArea, wanted: list[tuple[str, int]]) -> list[str]:
    try:
        return _receive(source, tree, staging, wanted)
    except (GoneError, OSError):
        # What has come by now serves the next one, whichever run and slot that is.
        with contextlib.suppress(OSError):
            tree.remember()
        raise


def _receive(source: Source, tree: WorkTree, staging: StagingArea, wanted: list[tuple[str, int]]) -> list[str]:
    """Take the stream apart, and place what is whole; gives what is not what it should be."""
    bad = []
    for digest, offset in wanted:
        size = tree.sizes[digest]
        if size > BLOCK:
            is_good = staging.append(digest, offset, source.parts(size - offset))
        else:
            data = source.take(size)
            is_good = digest_of(data) == digest
            if is_good:
                staging.write(digest, data)
        if is_good:
            tree.place(digest, staging)
        else:
            bad.append(digest)
    source.end()
    return bad


VERBS: dict[str, Callable[..., None]] = {"tree-put": put}
