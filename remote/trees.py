"""Receive a project: its digest, then its entries, then one stream of the content that this machine lacks."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from gpuinfra.remote import closing, heartbeat, output_folders, slots, states
from gpuinfra.remote.run_folder import OUTPUTS
from gpuinfra.remote.staging import BLOCK, StagingArea, digest_of
from gpuinfra.remote.wire import DATA, GoneError, RefusedError, Wire
from gpuinfra.remote.work_tree import WorkTree

PULSE_SECONDS = 5.0
# The first byte of a part: the rest is compressed.
COMPRESSED = 1


class Pulse:
    """Reports to the client and to other uploads that work continues."""

    def __init__(self, wire: Wire, slot: slots.Slot) -> None:
        self._wire, self._slot, self._last = wire, slot, time.monotonic()

    def __call__(self) -> None:
        """Report it every few seconds. It is cheap to call often."""
        now = time.monotonic()
        if now - self._last > PULSE_SECONDS:
            self._last = now
            self._slot.renew()
            self._wire.send_json({"busy": True})


class Source:
    """Reads the content of one file after the other from a stream of messages."""

    def __init__(self, wire: Wire, heartbeat: Callable[[], None]) -> None:
        self._wire, self._heartbeat, self._buffer = wire, heartbeat, memoryview(b"")

    def take(self, count: int) -> bytes | memoryview:
        """Return this many bytes."""
        if count > len(self._buffer):
            return b"".join(self.parts(count))
        found, self._buffer = self._buffer[:count], self._buffer[count:]
        return found

    def parts(self, count: int) -> Iterator[memoryview]:
        """Yield this many bytes as they arrive."""
        while count:
            if not self._buffer:
                self._buffer = self._next()
            part = self._buffer[:count]
            self._buffer = self._buffer[len(part) :]
            count -= len(part)
            yield part

    def end(self) -> None:
        """Read the end of the stream."""
        self._wire.receive_json()

    def _next(self) -> memoryview:
        kind, payload = self._wire.receive()
        self._heartbeat()
        if kind != DATA or len(payload) < 2:
            raise RefusedError("protocol", "expected the content of a file")
        body = memoryview(payload)[1:]
        return memoryview(zlib.decompress(body)) if payload[0] == COMPRESSED else body


def put(wire: Wire, request: dict[str, Any]) -> None:
    """Make a slot's tree equal to a project."""
    with closing.accepting_jobs():
        _put(wire, request)


def _put(wire: Wire, request: dict[str, Any]) -> None:
    began = time.monotonic()
    # An upload creates no reference cycles, but a hundred thousand objects that the collector would visit.
    gc.disable()
    abandoned = [run for run in request.get("abandoned", ()) if states.read(run) is None]
    slot = slots.take(request["project"], request["run"], abandoned)
    try:
        names = [OUTPUTS, *request.get("moreOutputs", ())]
        tree = WorkTree(slot, Pulse(wire, slot), names)
        with tree.permitted():
            os.makedirs(slot.tree, exist_ok=True)
            output_folders.give(slot, request["run"], names)
            is_already = tree.is_already(request["digest"])
        # Only now are their outputs in their folders.
        _remove_runs([*abandoned, *_kept(slot.previous, request["run"])])
        if "heartbeat" in request:
            heartbeat.record(request["run"], request["heartbeat"])
        answer = {"slot": slot.name, "tree": slot.tree, "same": is_already}
        wire.send_json({**answer, "seconds": time.monotonic() - began})
        if not is_already:
            _update(wire, tree, request["digest"], heartbeat.TransferHeartbeat(request["run"]))
        slot.renew()
        with contextlib.suppress(OSError, RefusedError):  # the next upload tries again
            slots.remove_unused(request["project"])
    finally:
        slot.close()
        gc.enable()


def _kept(previous: str, run: str) -> list[str]:
    """Return the previous run of a slot if it is only kept for a look: its copy of the project is about to change."""
    with contextlib.suppress(RefusedError):  # not the name of a run
        if previous and previous != run and heartbeat.is_kept(previous) and states.is_over(previous):
            return [previous]
    return []


def _remove_runs(runs: list[str]) -> None:
    for run in runs:
        from gpuinfra.remote import jobs  # most uploads do not need it

        jobs.remove(run)


def _update(wire: Wire, tree: WorkTree, digest: str, heartbeat: Callable[[], None]) -> None:
    """Receive the entries of a project and the missing content, and make the tree equal to them."""
    tree.expect(_receive_entries(wire))
    staging = StagingArea(tree.slot, Pulse(wire, tree.slot))
    try:
        with tree.permitted():
            missing = tree.prepare(staging)
        need = sum(tree.sizes[each] - offset for each, offset in missing)
        free = shutil.disk_usage(tree.slot.folder).free
        if need > free:
            raise RefusedError("disk-full", f"the project needs {need} more bytes, but only {free} are free")
        wire.send(DATA, zlib.compress(json.dumps(missing).encode(), 1))
        wire.flush()
        with tree.permitted():
            bad = _receive(Source(wire, heartbeat), tree, staging, missing)
            if not bad:
                tree.finish(digest)
        staging.clean()
        wire.send_json({"bad": bad})
    finally:
        staging.close()


def _receive_entries(wire: Wire) -> list[list[Any]]:
    entries: list[list[Any]] = []
    while True:
        kind, payload = wire.receive()
        if kind != DATA:
            return entries
        entries += json.loads(zlib.decompress(payload))


def _receive(source: Source, tree: WorkTree, staging: StagingArea, missing: list[tuple[str, int]]) -> list[str]:
    """Receive missing content and place it. Return the digests of content that arrived damaged."""
    try:
        return _place_all(source, tree, staging, missing)
    except (GoneError, OSError):
        # Keep what has arrived for the next upload, of any run and in any slot.
        with contextlib.suppress(OSError):
            tree.remember()
        raise


def _place_all(source: Source, tree: WorkTree, staging: StagingArea, missing: list[tuple[str, int]]) -> list[str]:
    bad = []
    for digest, offset in missing:
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
