"""What a job wrote: what the near side does not have of it is sent, in one stream."""

from __future__ import annotations

import json
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from gpuinfra.remote import home
from gpuinfra.remote.outputs_folder import Folder, stamp, wire_name
from gpuinfra.remote.wire import DATA, JSON, RefusedError, Wire

CHUNK = 1 << 18
# Files that changed so recently are likely to change again.
QUIET_SECONDS = 2.0
# In which a file that changes while it is read is tried again, after the end of a job.
ROUNDS, ROUND_PAUSE = 3, 0.5
BATCH = 500
# While a large file is only looked at, so often something is said.
SILENCE_SECONDS = 10.0
# Smaller than this, or not smaller by so much, and it is sent as it is.
LEAST_PACKED, WORTH_PACKING = 512, 0.8
PLAIN, PACKED = b"r", b"z"


def digest() -> Any:
    """Of content. Both sides use the same."""
    from hashlib import blake2b  # it takes a while, and few calls need it

    return blake2b(digest_size=16)


class Sending:
    """One answer: what the near side does not have."""

    def __init__(
        self, run: str, wire: Wire, folder: Folder, known: dict[str, Any], parts: dict[str, Any], final: bool
    ) -> None:
        from gpuinfra.remote.heartbeat import Presence  # the near side reads this module too, and needs none of it

        self._wire, self._folder = wire, folder
        self._present = Presence(run)
        self._known, self._parts, self._final = known, parts, final
        self._same: list[Any] = []
        self._said = time.monotonic()
        self.confirmed = self.changed = 0

    def wanted(self, path: str, seen: list[int]) -> bool:
        """Whether a file has to be looked at more closely."""
        known = self._known.get(wire_name(path))
        if self._final:
            return True
        if known and known[:3] == seen:
            self.confirmed += 1
            return False
        if time.time() - seen[1] / 1e9 < QUIET_SECONDS:
            self.changed += 1
            return False
        return True

    def send_all(self, files: list[tuple[str, list[int], int]]) -> None:
        """Those files; what changes under our hands is tried again, or left for the next time."""
        for attempt in range(ROUNDS if self._final else 1):
            if attempt:
                time.sleep(ROUND_PAUSE)
            files = [each for each in files if not self._send(each[0], each[2])]
            if not files:
                break
        self.changed += len(files)
        self._tell_same(0)

    def _send(self, path: str, mode: int) -> bool:
        """Whether it is done with."""
        try:
            number = self._folder.open(path)
        except OSError as error:
            # One that was there just now: what is not here is not called complete.
            return self._folder.refuse(path, error)
        try:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode):
                return False
            seen = stamp(found)
            known = self._known.get(wire_name(path))
            if known and known[0] == seen[0]:
                content = self._looked_over(number, seen[0])
                if stamp(os.fstat(number)) != seen:
                    return False
                if content == known[3]:
                    self._same.append([wire_name(path), *seen, content])
                    self.confirmed += 1
                    self._tell_same(BATCH)
                    return True
            is_sent = self._stream(number, path, seen, mode)
        finally:
            os.close(number)
        self.confirmed += is_sent
        return is_sent

    def _looked_over(self, number: int, size: int) -> str:
        """The digest of that much of it."""
        found = digest()
        self._read(number, 0, size, found, None)
        return str(found.hexdigest())

    def _stream(self, number: int, path: str, seen: list[int], mode: int) -> bool:
        part = self._parts.get(wire_name(path))
        offset = part[0] if part and part[1:] == seen and part[0] <= seen[0] else 0
        header = {"file": wire_name(path), "stamp": seen, "mode": mode & 0o777, "offset": offset}
        self._wire.send(JSON, json.dumps(header).encode())
        found = digest()
        self._read(number, 0, offset, found, None)
        read = self._read(number, offset, seen[0], found, _packer())
        is_whole = read == seen[0] and stamp(os.fstat(number)) == seen
        trailer = {"digest": found.hexdigest()} if is_whole else {"changed": True}
        self._wire.send(JSON, json.dumps(trailer).encode())
        return is_whole

    def _read(self, number: int, start: int, end: int, found: Any, pack: Callable[[bytes], bytes] | None) -> int:
        """That stretch of a file, into the digest, and with a packer on its way; how far it went."""
        while start < end:
            data = os.pread(number, min(CHUNK, end - start), start)
            if not data:
                break
            found.update(data)
            start += len(data)
            if pack:
                self._wire.send(DATA, pack(data))
                self._present()
                self._said = time.monotonic()
            elif time.monotonic() - self._said > SILENCE_SECONDS:
                self._wire.send(DATA, b"")
                self._wire.flush()
                self._said = time.monotonic()
        return start

    def _tell_same(self, most: int) -> None:
        if len(self._same) > most:
            self._wire.send(JSON, json.dumps({"same": self._same}).encode())
            self._same = []


def _packer() -> Callable[[bytes], bytes]:
    """Compresses chunks of one file for as long as it pays."""
    is_worth = True

    def pack(data: bytes) -> bytes:
        nonlocal is_worth
        if is_worth and len(data) >= LEAST_PACKED:
            packed = zlib.compress(data, 1)
            is_worth = len(packed) < WORTH_PACKING * len(data)
            if is_worth:
                return PACKED + packed
        return PLAIN + data

    return pack


def outputs(wire: Wire, request: dict[str, Any]) -> None:
    """The outputs of a run: the near side says what it has, and gets the rest."""
    run = request["run"]
    known = {each[0]: each[1:] for each in _received(wire)}
    parts = {each[0]: each[1:] for each in _received(wire)}
    if not os.path.isdir(home.run_folder(run)):
        raise RefusedError("no-such-run", f"nothing of run {run} is on this machine")
    os.makedirs(os.path.join(home.run_folder(run), "outputs"), exist_ok=True)
    folder = Folder(os.path.join(home.run_folder(run), "outputs"))
    try:
        folder.look()
        for batch in _batches([[wire_name(path), mode] for path, mode in folder.folders]):
            wire.send(JSON, json.dumps({"folders": batch}).encode())
        for batch in _batches([[wire_name(path), wire_name(target)] for path, target in folder.links]):
            wire.send(JSON, json.dumps({"links": batch}).encode())
        sending = Sending(run, wire, folder, known, parts, request["final"])
        files = [each for each in folder.files if sending.wanted(each[0], each[1])]
        total = sum(each[1][0] for each in files)
        wire.send_json({"files": len(folder.files), "total": total})
        sending.send_all(files)
        for batch in _batches([[wire_name(path), reason] for path, reason in folder.unreadable]):
            wire.send(JSON, json.dumps({"unreadable": batch}).encode())
        gone = len(set(known) - {wire_name(each[0]) for each in folder.files})
        wire.send_json({"confirmed": sending.confirmed, "changed": sending.changed, "gone": gone})
    finally:
        folder.close()


def _received(wire: Wire) -> Iterator[list[Any]]:
    """A list that comes in parts, the last of which is empty."""
    while True:
        _, payload = wire.receive()
        if not payload:
            return
        yield from json.loads(zlib.decompress(payload))


def _batches(values: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(values), BATCH):
        yield values[start : start + BATCH]


VERBS: dict[str, Callable[..., None]] = {"outputs": outputs}
