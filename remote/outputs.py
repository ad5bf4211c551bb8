"""Send the outputs of a run: all files that the client does not have, in one answer."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from gpuinfra.remote import home
from gpuinfra.remote.folder_content import FolderContent, reason_of, stamp, wire_name
from gpuinfra.remote.wire import DATA, JSON, RefusedError, Wire

CHUNK = 1 << 18
# A file that changed more recently than this is likely to change again.
QUIET_SECONDS = 2.0
# After the end of a job, a file that changes while it is read is tried this many times.
ATTEMPTS, ATTEMPT_PAUSE = 3, 0.5
# During a job, until a file that the job writes is complete, or is sent as far as it was written.
NOW_ATTEMPTS = 7
BATCH = 500
# While a large file is only compared, an empty message is sent this often.
KEEPALIVE_SECONDS = 10.0
# Smaller chunks, and chunks that compression does not shrink below this ratio, are sent uncompressed.
MIN_PACKED_SIZE, MAX_PACKED_RATIO = 512, 0.8
PLAIN, PACKED = b"r", b"z"
# Unlike a link among the outputs, a link in place of their folder means that none of them is here.
FOLDER_IS_LINK, NOT_A_FOLDER = "it is a symbolic link, which is not followed", "it is not a folder"


def digest() -> Any:
    """Return the hash object that the client and the machine use for file content."""
    from hashlib import blake2b  # slow to import, and few calls need it

    return blake2b(digest_size=16)


class OutputFile(NamedTuple):
    """A file among the outputs, as it was found."""

    folder: FolderContent
    path: str
    stamp: list[int]
    mode: int

    @property
    def name(self) -> str:
        return self.folder.name(self.path)


class OutputsSender:
    """Sends the files that the client does not have."""

    def __init__(
        self, run: str, wire: Wire, known: dict[str, Any], parts: dict[str, Any], final: bool, now: bool
    ) -> None:
        """`final` means that the job has ended, and `now` that files which it is writing are sent as they are."""
        from gpuinfra.remote.heartbeat import TransferHeartbeat  # the client imports this module without needing it

        self._wire = wire
        self._heartbeat = TransferHeartbeat(run)
        self._run, self._known, self._parts, self._final, self._now = run, known, parts, final, now
        self._same: list[Any] = []
        self._sent = time.monotonic()
        self.confirmed = self.changed = 0
        self.skipped: list[str] = []
        """Files that changed whenever they were read."""
        self.growing: list[str] = []
        """Files that are here as far as they were written. The job may not have finished them."""

    def needs_check(self, file: OutputFile) -> bool:
        """Return whether a file's content must be compared or sent now."""
        known = self._known.get(file.name)
        if self._final:
            return True
        if known and known[:3] == file.stamp:
            self.confirmed += 1
            return False
        if not self._now and _is_recent(file.stamp):
            self.changed += 1
            return False
        return True

    def send_all(self, files: list[OutputFile]) -> None:
        """Send these files. Retry a file that changes while it is read, or leave it for the next call."""
        attempts = NOW_ATTEMPTS if self._now else ATTEMPTS if self._final else 1
        for attempt in range(attempts):
            if attempt:
                time.sleep(ATTEMPT_PAUSE)
                self._wire.send(DATA, b"")
                self._wire.flush()
            files = [each for each in files if not self._send(each, is_last=attempt == attempts - 1)]
            if not files:
                break
        self.changed += len(files)
        self.skipped += [each.name for each in files]
        self._report_same(0)

    def _send(self, file: OutputFile, *, is_last: bool) -> bool:
        """Send one file if the client needs it, and return whether it is complete."""
        try:
            number = file.folder.open(file.path)
        except OSError as error:
            return file.folder.note_unreadable(file.path, error)
        try:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode):
                return False
            seen = stamp(found)
            known = self._known.get(file.name)
            if known and known[0] == seen[0]:
                content = self._digest(number, seen[0])
                if stamp(os.fstat(number)) != seen:
                    return False
                if content == known[3]:
                    self._same.append([file.name, *seen, content])
                    self.confirmed += 1
                    self._report_same(BATCH)
                    return True
            send = self._stream if not self._now else self._send_last if is_last else self._send_current
            is_sent = send(number, file, seen)
        finally:
            os.close(number)
        self.confirmed += is_sent
        return is_sent

    def _send_last(self, number: int, file: OutputFile, seen: list[int]) -> bool:
        return self._send_current(number, file, seen, is_last=True)

    def _send_current(self, number: int, file: OutputFile, seen: list[int], *, is_last: bool = False) -> bool:
        """Send a file of a running job if it is complete, or if it is a log as far as it was written."""
        from gpuinfra.remote import snapshot

        is_open, is_recent = snapshot.is_being_written(number), _is_recent(seen)
        known = self._known.get(file.name)
        if not is_open and not is_recent:
            return self._stream(number, file, seen)
        if is_open and is_recent and not is_last and not known:
            return False  # the job may be about to finish it
        try:
            copy = snapshot.copy_of(number, home.run_folder(self._run), seen[0], self._pulse)
        except OSError:
            return False  # there is no space for the copy
        try:
            if os.fstat(copy).st_size != seen[0]:
                return False
            if is_open or stamp(os.fstat(number)) != seen:
                # A log grows. Half of a file must not replace the complete one that the client has.
                is_log = not known or (known[0] <= seen[0] and self._digest(copy, known[0]) == known[3])
                if not (is_log and snapshot.begins_with(number, copy, self._pulse)):
                    return False
                self.growing += [file.name] if is_recent and not known else []
            return self._stream(copy, file, seen, is_copy=True)
        finally:
            os.close(copy)

    def _digest(self, number: int, size: int) -> str:
        found = digest()
        self._read(number, 0, size, found, None)
        return str(found.hexdigest())

    def _stream(self, number: int, file: OutputFile, seen: list[int], *, is_copy: bool = False) -> bool:
        """Send a file's content, and return whether the file stayed unchanged while it was read."""
        part = self._parts.get(file.name)
        offset = part[0] if part and part[1:] == seen and part[0] <= seen[0] else 0
        header = {"file": file.name, "stamp": seen, "mode": file.mode & 0o777, "offset": offset}
        self._wire.send(JSON, json.dumps(header).encode())
        found = digest()
        self._read(number, 0, offset, found, None)
        read = self._read(number, offset, seen[0], found, _packer())
        is_whole = read == seen[0] and (is_copy or stamp(os.fstat(number)) == seen)
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
            else:
                self._pulse()
        return start

    def _pulse(self) -> None:
        """Send an empty message every few seconds, so that the client knows that work continues."""
        if time.monotonic() - self._sent > KEEPALIVE_SECONDS:
            self._wire.send(DATA, b"")
            self._wire.flush()
            self._sent = time.monotonic()

    def _report_same(self, limit: int) -> None:
        """Report unchanged files, if there are more than the limit."""
        if len(self._same) > limit:
            self._wire.send(JSON, json.dumps({"same": self._same}).encode())
            self._same = []


def _is_recent(seen: list[int]) -> bool:
    """Return whether a file with this stamp changed so recently that it is likely to change again."""
    return time.time() - seen[1] / 1e9 < QUIET_SECONDS


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
    with contextlib.ExitStack() as stack:
        contents, own, unreadable = _open_folders(run)
        for content in contents:
            stack.callback(content.close)
            content.scan()
        _send_lists(wire, "folders", [[each.name(path), mode] for each in contents for path, mode in each.folders])
        links = [[each.name(path), wire_name(target)] for each in contents for path, target in each.links]
        _send_lists(wire, "links", links)
        sender = OutputsSender(run, wire, known, parts, request["final"], request.get("now", False))
        found = [OutputFile(each, *file) for each in contents for file in each.files]
        files = [each for each in found if sender.needs_check(each)]
        wire.send_json({"files": len(found), "total": sum(each.stamp[0] for each in files)})
        sender.send_all(files)
        unreadable += [[each.name(path), reason] for each in contents for path, reason in each.unreadable]
        _send_lists(wire, "unreadable", unreadable)
        _send_lists(wire, "skipped", sender.skipped)
        _send_lists(wire, "growing", sender.growing)
        gone = len(set(known) - {each.name for each in found})
        wire.send_json({"confirmed": sender.confirmed, "changed": sender.changed, "gone": gone, "own": own})


def _open_folders(run: str) -> tuple[list[FolderContent], list[str], list[list[str]]]:
    """Return the open folders with a run's outputs, their paths, and those that cannot be opened with the reason."""
    from gpuinfra.remote import output_folders  # the client imports this module without needing it

    opened, paths, unreadable = [], [], []
    with output_folders.located(run) as folders:
        for place, name, path in folders:
            try:
                mode = os.lstat(path).st_mode
                if stat.S_ISDIR(mode):
                    paths.append(path)
                    opened.append(FolderContent(path, place, f"/project/{name}"))
                else:
                    unreadable.append([wire_name(place), FOLDER_IS_LINK if stat.S_ISLNK(mode) else NOT_A_FOLDER])
            except FileNotFoundError:
                continue  # the job has removed it
            except OSError as error:
                unreadable.append([wire_name(place), reason_of(error)])
    return opened, paths, unreadable


def _receive_list(wire: Wire) -> Iterator[list[Any]]:
    """Yield the entries of a list that arrives in parts. An empty part ends it."""
    while True:
        _, payload = wire.receive()
        if not payload:
            return
        yield from json.loads(zlib.decompress(payload))


def _send_lists(wire: Wire, kind: str, values: Sequence[Any]) -> None:
    for start in range(0, len(values), BATCH):
        wire.send(JSON, json.dumps({kind: values[start : start + BATCH]}).encode())
