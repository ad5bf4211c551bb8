"""A slot's work tree, on its way to what it should be.

It is compared with its index: the state of each file as it was placed, and its content's digest. The
index is written last; whatever a tree has got since, or before an upload was cut off, is known by its content.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any

from gpuinfra.remote import home, slots
from gpuinfra.remote.run_folder import OUTPUTS
from gpuinfra.remote.slots import BLOCK, StagingArea, hashed
from gpuinfra.remote.wire import RefusedError

FORMAT = 1
FILE, FOLDER, LINK = "f", "d", "l"


def walk(root: bytes) -> dict[str, list[int]]:
    """The state of everything in a tree but its outputs, folders before what is in them."""
    found: dict[str, list[int]] = {}
    waiting = [(root, "")]
    while waiting:
        folder, above = waiting.pop()
        with os.scandir(folder) as children:
            for child in children:
                path = above + child.name.decode("utf-8", "surrogateescape")
                if path == OUTPUTS:
                    continue
                state = found[path] = state_of(child.stat(follow_symlinks=False))
                if len(state) == 1 and state[0] & 0o700 != 0o700:
                    os.chmod(child.path, state[0] | 0o700)  # a job may have closed it, to us as well
                if len(state) == 1:
                    waiting.append((child.path, path + "/"))
    return found


def state_of(found: os.stat_result) -> list[int]:
    """Return what identifies a file as the one that was placed; for a folder, its mode alone."""
    if stat.S_ISDIR(found.st_mode):
        return [found.st_mode & 0o777]
    return [found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def read_index(path: str) -> dict[str, Any]:
    """What is known of a tree; a broken index is as good as none."""
    try:
        with open(path) as file:
            index = json.load(file)
        if index["format"] == FORMAT and {"digest", "states", "contents"} <= set(index):
            return dict(index)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {"digest": "", "states": {}, "contents": {}}


class WorkTree:
    """What is in it, what should be, and the way from one to the other."""

    def __init__(self, slot: slots.Slot, pulse: Callable[[], None]) -> None:
        self.slot, self._pulse = slot, pulse
        self._root = os.fsencode(slot.tree)
        self._index = read_index(slot.index)
        self._found: dict[str, list[int]] = {}
        self._states: dict[str, list[int]] = {}
        self._entries: dict[str, list[Any]] = {}
        self._places: dict[str, list[str]] = {}
        self.sizes: dict[str, int] = {}
        """Of every content that is missing in a place, by digest."""

    @contextlib.contextmanager
    def permitted(self) -> Iterator[None]:
        """Raise RefusedError for files that only a container's root can remove."""
        try:
            yield
        except PermissionError as error:
            raise RefusedError("foreign-files", self.slot.tree) from error

    def is_already(self, digest: str) -> bool:
        """Look at it; whether it is what is wanted."""
        os.makedirs(self.slot.tree, exist_ok=True)
        self._found = walk(self._root)
        return bool(self._index["digest"] == digest and self._found == self._index["states"])

    def expect(self, entries: list[list[Any]]) -> None:
        """What should be in it, folders first."""
        folders = {""}
        for entry in entries:
            path, kind = entry[0], entry[1]
            above, _, name = path.rpartition("/")
            # Only in folders that were named before: so nothing leads out, not even by links.
            if above not in folders or name in {"", ".", ".."} or "\0" in path or path == OUTPUTS:
                raise RefusedError("protocol", f"not a path: {path!r}")
            if kind == FOLDER:
                folders.add(path)
            self._entries[path] = entry

    def clear(self, staging: StagingArea) -> list[tuple[str, int]]:
        """Leave what is right and nothing else, and place what this machine has; gives the contents that it has not,
        and how much of each is here."""
        for path, state in self._found.items():
            if len(state) == 1 and state[0] & 0o700 != 0o700:
                os.chmod(self._full(path), state[0] | 0o700)
        for entry in self._entries.values():
            self._keep(entry)
        offsets = {digest: staging.offset(digest, self.sizes[digest]) for digest in self._places}
        self._copy(staging, offsets)
        # Before anything comes: it may need the room.
        for path in reversed(list(self._found)):
            if path not in self._states:
                (os.rmdir if len(self._found[path]) == 1 else os.unlink)(self._full(path))
                self._pulse()
        self._make()
        for digest, offset in offsets.items():
            if offset == self.sizes[digest]:
                self.place(digest, staging)
        return [(digest, offset) for digest, offset in offsets.items() if offset < self.sizes[digest]]

    def place(self, digest: str, staging: StagingArea) -> None:
        """A content that is whole, in every place that it belongs to."""
        first, *others = self._places[digest]
        for path in others:
            self._duplicate(staging.path(digest), path)
        os.chmod(staging.path(digest), self._entries[first][2])
        os.rename(os.fsencode(staging.path(digest)), self._full(first))
        for path in self._places[digest]:
            self._states[path] = state_of(os.lstat(self._full(path)))

    def finish(self, digest: str) -> None:
        """All is placed: give folders their modes, and remember how everything is."""
        for path in reversed(list(self._entries)):
            kind, mode = self._entries[path][1:3]
            if kind == FOLDER:
                os.chmod(self._full(path), mode)
                self._states[path] = [mode]
        self.remember(digest)

    def remember(self, digest: str = "") -> None:
        """How everything is that is placed; without a digest it is not all that should be."""
        contents = {path: self._entries[path][4] for path, state in self._states.items() if len(state) > 1}
        index = {"format": FORMAT, "digest": digest, "states": self._states, "contents": contents}
        new = self.slot.index + ".new"
        with open(new, "w") as file:
            file.write(json.dumps(index))
        os.replace(new, self.slot.index)

    def give_outputs(self, run: str, way: str) -> str:
        """Make the folder for what the job writes, and its place in the tree; gives the folder's path."""
        folder = os.path.join(home.run_folder(run), OUTPUTS)
        os.makedirs(folder, exist_ok=True)
        place = os.path.join(self.slot.tree, OUTPUTS)
        if os.path.islink(place):
            if way == "link" and os.readlink(place) == folder:
                return folder
            os.unlink(place)
        elif os.path.lexists(place):
            self._set_aside(place)
        if way == "link":
            os.symlink(folder, place)
        else:
            os.mkdir(place, 0o777)
        return folder

    def _set_aside(self, place: str) -> None:
        """A job may have put something of its own into the place of its outputs: no output is ever lost."""
        with contextlib.suppress(OSError):
            os.rmdir(place)
            return
        above = home.run_folder(self.slot.previous or "unknown")
        os.makedirs(above, exist_ok=True)
        kept, number = os.path.join(above, OUTPUTS), 1
        # An empty folder is as good as none.
        while os.path.lexists(kept) and not (os.path.isdir(kept) and os.path.isdir(place) and not os.listdir(kept)):
            number += 1
            kept = os.path.join(above, f"{OUTPUTS}-{number}")
        os.rename(place, kept)

    def _full(self, path: str) -> bytes:
        return os.path.join(self._root, path.encode("utf-8", "surrogateescape"))

    def _keep(self, entry: list[Any]) -> None:
        path, kind, mode, size, content = entry
        state = self._found.get(path)
        if state and self._is_right(path, kind, size, content, state):
            if kind == FILE and state[0] & 0o7777 != mode:
                os.chmod(self._full(path), mode)
                state = state_of(os.lstat(self._full(path)))
            self._states[path] = state
        elif kind == FILE and size:
            self.sizes[content] = size
            self._places.setdefault(content, []).append(path)
        self._pulse()

    def _is_right(self, path: str, kind: str, size: int, content: str, state: list[int]) -> bool:
        if len(state) == 1 or kind == FOLDER:
            return len(state) == 1 and kind == FOLDER
        if kind != {stat.S_IFREG: FILE, stat.S_IFLNK: LINK}.get(stat.S_IFMT(state[0])):
            return False
        if self._index["states"].get(path) == state:
            return bool(self._index["contents"].get(path) == content)
        if kind == LINK:
            return os.readlink(self._full(path)) == content.encode("utf-8", "surrogateescape")
        return state[1] == size and hashed(self._full(path), self._pulse) == content

    def _copy(self, staging: StagingArea, offsets: dict[str, int]) -> None:
        """Contents that are in this tree, or in that of another slot, need not be sent."""
        missing = {digest for digest, offset in offsets.items() if offset < self.sizes[digest]}
        for source, digest in self._sources(missing):
            if digest in missing and staging.copy(digest, source):
                offsets[digest] = self.sizes[digest]
                missing.discard(digest)

    def _sources(self, missing: set[str]) -> Iterator[tuple[bytes, str]]:
        """Files with these contents, as far as is known. The set shrinks meanwhile."""
        for path in self._states:
            if self._entries[path][4] in missing:
                yield self._full(path), self._entries[path][4]
        project = os.path.basename(os.path.dirname(self.slot.folder))
        for folder in [self.slot.folder, *slots.folders(project)]:
            if not missing:
                return
            is_own = folder == self.slot.folder
            index = self._index if is_own else read_index(os.path.join(folder, "index"))
            root = os.fsencode(os.path.join(folder, "tree"))
            for path, digest in index["contents"].items():
                source = os.path.join(root, path.encode("utf-8", "surrogateescape"))
                if digest in missing and _is_state(source, index["states"][path]):
                    yield source, digest

    def _make(self) -> None:
        """Folders, links, and files with nothing in them."""
        for path, kind, mode, size, content in self._entries.values():
            if path in self._states or (kind == FILE and size):
                continue
            full = self._full(path)
            if kind == FOLDER:
                os.mkdir(full, 0o700)
            elif kind == LINK:
                os.symlink(content.encode("utf-8", "surrogateescape"), full)
            else:
                os.close(os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
                os.chmod(full, mode)
            self._states[path] = state_of(os.lstat(full))
            self._pulse()

    def _duplicate(self, source: str, path: str) -> None:
        with open(source, "rb") as reader, open(self._full(path), "xb") as writer:
            while True:
                part = reader.read(BLOCK)
                if not part:
                    break
                writer.write(part)
                self._pulse()
        os.chmod(self._full(path), self._entries[path][2])


def _is_state(path: bytes, state: list[int]) -> bool:
    try:
        return stat.S_ISREG(state[0]) and state_of(os.lstat(path)) == state
    except OSError:
        return False
