"""Send the outputs of a run: all files that the client does not have, in one answer."""

from __future__ import annotations

import json
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from gpuinfra.remote import home
from gpuinfra.remote.folder import FolderContent, stamp, wire_name
from gpuinfra.remote.run_folder import OUTPUTS
from gpuinfra.remote.wire import DATA, JSON, RefusedError, Wire

CHUNK = 1 << 18
# A file that changed more recently than this is likely to change again.
QUIET_SECONDS = 2.0
# After the end of a job, a file that changes while it is read is tried this many times.
ATTEMPTS, ATTEMPT_PAUSE = 3, 0.5
BATCH = 500
# While a large file is only compared, an empty message is sent this often.
KEEPALIVE_SECONDS = 10.0
# Smaller chunks, and chunks that compression does not shrink below this ratio, are sent uncompressed.
MIN_PACKED_SIZE, MAX_PACKED_RATIO = 512, 0.8
PLAIN, PACKED = b"r", b"z"


def digest() -> Any:
    """Return the hash object that the client and the machine use for file content."""
    from hashlib import blake2b  # slow to import, and few calls need it

    return blake2b(digest_size=16)


class OutputsSender:
    """Sends the files that the client does not have."""

    def __init__(
        self, run: str, wire: Wire, folder: FolderContent, known: dict[str, Any], parts: dict[str, Any], final: bool
    ) -> None:
        from gpuinfra.remote.heartbeat import TransferHeartbeat  # the client imports this module without needing it

        self._wire, self._folder = wire, folder
        self._heartbeat = TransferHeartbeat(run)
        self._known, self._parts, self._final = known, parts, final
        self._same: list[Any] = []
        self._sent = time.monotonic()
        self.confirmed = self.changed = 0

    def needs_check(self, path: str, seen: list[int]) -> bool:
        """Return whether a file's content must be compared or sent now."""
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
        """Send these files. Retry a file that changes while it is read, or leave it for the next call."""
        for attempt in range(ATTEMPTS if self._final else 1):
            if attempt:
                time.sleep(ATTEMPT_PAUSE)
            files = [each for each in files if not self._send(each[0], each[2])]
            if not files:
                break
        self.changed += len(files)
        self._report_same(0)

    def _send(self, path: str, mode: int) -> bool:
        """Send one file if the client needs it, and return whether it is complete."""
        try:
            number = self._folder.open(path)
        except OSError as error:
            return self._folder.note_unreadable(path, error)
        try:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode):
                return False
            seen = stamp(found)
            known = self._known.get(wire_name(path))
            if known and known[0] == seen[0]:
                content = self._digest(number, seen[0])
                if stamp(os.fstat(number)) != seen:
                    return False
                if content == known[3]:
                    self._same.append([wire_name(path), *seen, content])
                    self.confirmed += 1
                    self._report_same(BATCH)
                    return True
            is_sent = self._stream(number, path, seen, mode)
        finally:
            os.close(number)
        self.confirmed += is_sent
        return is_sent

    def _digest(self, number: int, size: int) -> str:
        found = digest()
        self._read(number, 0, size, found, None)
        return str(found.hexdigest())

    def _stream(self, number: int, path: str, seen: list[int], mode: int) -> bool:
        """Send a file's content, and return whether the file stayed unchanged while it was read."""
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
        """Read a range of a file into the digest, and send it if a packer is given. Return the position reached."""
        while start < end:
            data = os.pread(number, min(CHUNK, end - start), start)
            if not data:
                break
            found.update(data)
            start += len(data)
            if pack:
                self._wire.send(DATA, pack(data))
                self._heartbeat()
                self._sent = time.monotonic()
            elif time.monotonic() - self._sent > KEEPALIVE_SECONDS:
                self._wire.send(DATA, b"")
                self._wire.flush()
                self._sent = time.monotonic()
        return start

    def _report_same(self, limit: int) -> None:
        """Report unchanged files, if there are more than the limit."""
        if len(self._same) > limit:
            self._wire.send(JSON, json.dumps({"same": self._same}).encode())
            self._same = []


def _packer() -> Callable[[bytes], bytes]:
    """Return a function that compresses the chunks of one file until compression stops paying off."""
    is_worth = True

    def pack(data: bytes) -> bytes:
        nonlocal is_worth
        if is_worth and len(data) >= MIN_PACKED_SIZE:
            packed = zlib.compress(data, 1)
            is_worth = len(packed) < MAX_PACKED_RATIO * len(data)
            if is_worth:
                return PACKED + packed
        return PLAIN + data

    return pack


def outputs(wire: Wire, request: dict[str, Any]) -> None:
    """Receive what the client has of a run's outputs, and send the rest."""
    run = request["run"]
    known = {each[0]: each[1:] for each in _receive_list(wire)}
    parts = {each[0]: each[1:] for each in _receive_list(wire)}
    if not os.path.isdir(home.run_folder(run)):
        raise RefusedError("no-such-run", f"run {run} is not on this machine")
    os.makedirs(os.path.join(home.run_folder(run), OUTPUTS), exist_ok=True)
    folder = FolderContent(os.path.join(home.run_folder(run), OUTPUTS))
    try:
        folder.scan()
        for batch in _batches([[wire_name(path), mode] for path, mode in folder.folders]):
            wire.send(JSON, json.dumps({"folders": batch}).encode())
        for batch in _batches([[wire_name(path), wire_name(target)] for path, target in folder.links]):
            wire.send(JSON, json.dumps({"links": batch}).encode())
        sender = OutputsSender(run, wire, folder, known, parts, request["final"])
        files = [each for each in folder.files if sender.needs_check(each[0], each[1])]
        total = sum(each[1][0] for each in files)
        wire.send_json({"files": len(folder.files), "total": total})
        sender.send_all(files)
        for batch in _batches([[wire_name(path), reason] for path, reason in folder.unreadable]):
            wire.send(JSON, json.dumps({"unreadable": batch}).encode())
        gone = len(set(known) - {wire_name(each[0]) for each in folder.files})
        wire.send_json({"confirmed": sender.confirmed, "changed": sender.changed, "gone": gone})
    finally:
        folder.close()


def _receive_list(wire: Wire) -> Iterator[list[Any]]:
    """Yield the entries of a list that arrives in parts. An empty part ends it."""
    while True:
        _, payload = wire.receive()
        if not payload:
            return
        yield from json.loads(zlib.decompress(payload))


def _batches(values: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(values), BATCH):
        yield values[start : start + BATCH]
