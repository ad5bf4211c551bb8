"""What a job wrote: list its folder without following links, and send what the client does not have, in one stream."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from gpuinfra.remote import home
from gpuinfra.remote.run_folder import OUTPUTS
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


class OutputsSender:
    """Sends, in one answer, what the client does not have."""

    def __init__(
        self, run: str, wire: Wire, folder: Folder, known: dict[str, Any], parts: dict[str, Any], final: bool
    ) -> None:
        from gpuinfra.remote.heartbeat import Presence  # the client imports this module too, and needs none of it

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
    """Send the outputs of a run: the client says what it has, and gets the rest."""
    run = request["run"]
    known = {each[0]: each[1:] for each in _received(wire)}
    parts = {each[0]: each[1:] for each in _received(wire)}
    if not os.path.isdir(home.run_folder(run)):
        raise RefusedError("no-such-run", f"nothing of run {run} is on this machine")
    os.makedirs(os.path.join(home.run_folder(run), OUTPUTS), exist_ok=True)
    folder = Folder(os.path.join(home.run_folder(run), OUTPUTS))
    try:
        folder.look()
        for batch in _batches([[wire_name(path), mode] for path, mode in folder.folders]):
            wire.send(JSON, json.dumps({"folders": batch}).encode())
        for batch in _batches([[wire_name(path), wire_name(target)] for path, target in folder.links]):
            wire.send(JSON, json.dumps({"links": batch}).encode())
        sending = OutputsSender(run, wire, folder, known, parts, request["final"])
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


# Linux accepts paths of up to 4095 bytes, and on the client's side the run's own folder comes first.
LONGEST_PATH = 3500
# Where a job in a container sees the folder.
IN_CONTAINER = "/project/outputs"
PERMISSION = "permission"


def wire_name(path: str) -> str:
    """A path as it travels, whatever the encoding of names is here."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def own_name(path: str) -> str:
    """A path that has travelled."""
    return os.fsdecode(path.encode("utf-8", "surrogateescape"))


def leads_inside(link: str, target: str) -> bool:
    """Whether a symbolic link, both as relative paths, stays in the folder, wherever other such links lead."""
    steps = [step for step in target.split("/") if step not in {"", "."}]
    up = 0
    while up < len(steps) and steps[up] == "..":
        up += 1
    return not target.startswith("/") and up <= link.count("/") and ".." not in steps[up:]


def stamp(found: os.stat_result) -> list[int]:
    """By what a file that did not change is known."""
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


class Folder:
    """A folder that is entered name by name: whatever the job puts in the way meanwhile is not followed."""

    def __init__(self, top: str) -> None:
        self.top = top
        self._number = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        self._near: tuple[str, int] = ("", self._number)
        self.files: list[tuple[str, list[int], int]] = []
        self.links: list[tuple[str, str]] = []
        self.folders: list[tuple[str, int]] = []
        self.unreadable: list[tuple[str, str]] = []

    def look(self) -> None:
        """List the folder's content."""
        waiting = [("", 0)]
        while waiting:
            path, mode = waiting.pop()
            try:
                number = self._entered(path)
                names = sorted(os.listdir(number))
            except OSError as error:
                self.refuse(f"{path}/", error)
                continue
            if path:
                self.folders.append((path, mode & 0o777))
            inner = [self._look(f"{path}/{name}" if path else name, name, number) for name in names]
            waiting += reversed([each for each in inner if each])

    def _look(self, path: str, name: str, number: int) -> tuple[str, int] | None:
        """List one of the names in an open folder; a folder is given, to be entered later."""
        try:
            found = os.stat(name, dir_fd=number, follow_symlinks=False)
            if len(os.fsencode(path)) > LONGEST_PATH:
                self.unreadable.append((path, f"its path has more than {LONGEST_PATH} bytes"))
            elif stat.S_ISDIR(found.st_mode):
                return path, found.st_mode
            elif stat.S_ISREG(found.st_mode):
                self.files.append((path, stamp(found), found.st_mode))
            elif stat.S_ISLNK(found.st_mode):
                self._keep_link(path, os.readlink(name, dir_fd=number))
            else:
                self.unreadable.append((path, "neither a file nor a folder"))
        except OSError as error:
            self.refuse(path, error)
        return None

    def _keep_link(self, path: str, target: str) -> None:
        for top in (self.top, os.path.realpath(self.top), IN_CONTAINER):
            if target == top or target.startswith(top + "/"):
                target = os.path.relpath(target, os.path.join(top, os.path.dirname(path)))
                break
        if leads_inside(path, target):
            self.links.append((path, target))
        else:
            self.unreadable.append((path, "a symbolic link that leads out of `outputs`"))

    def refuse(self, path: str, error: OSError) -> bool:
        """Remember what cannot be read, and why; False for what is gone meanwhile, or something else."""
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return False
        is_forbidden = error.errno in {errno.EACCES, errno.EPERM}
        self.unreadable.append((path, PERMISSION if is_forbidden else os.strerror(error.errno or 0)))
        return True

    def open(self, path: str) -> int:
        """A file for reading."""
        folder, _, name = path.rpartition("/")
        # A file may have become a FIFO by now, which would be waited for.
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._entered(folder))

    def _entered(self, folder: str) -> int:
        """A folder, open until another one is entered."""
        near, number = self._near
        if folder == near:
            return number
        is_below = bool(near) and folder.startswith(f"{near}/")
        number = os.dup(number if is_below else self._number)
        rest = folder[len(near) + 1 :] if is_below else folder
        for step in rest.split("/") if rest else ():
            try:
                inner = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=number)
            finally:
                os.close(number)
            number = inner
        self._let_go()
        self._near = (folder, number)
        return number

    def _let_go(self) -> None:
        if self._near[1] != self._number:
            os.close(self._near[1])
        self._near = ("", self._number)

    def close(self) -> None:
        """Let go of it."""
        self._let_go()
        os.close(self._number)
