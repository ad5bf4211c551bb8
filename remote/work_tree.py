"""A slot's copy of a project, and how it becomes equal to the project.

An index holds the state of each file when it was placed, and the digest of its content. It is written last. A file
whose state differs from the index is read to compare its content.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gpuinfra.remote import home, slots
from gpuinfra.remote.run_folder import OUTPUTS
from gpuinfra.remote.staging import BLOCK, StagingArea, digest_of_file
from gpuinfra.remote.wire import RefusedError

FORMAT = 1
FILE, FOLDER, LINK = "f", "d", "l"


def walk(root: bytes, outputs: Sequence[str] = (OUTPUTS,)) -> dict[str, list[int]]:
    """Return the state of every path in a tree except the folders for outputs, folders before their content."""
    found: dict[str, list[int]] = {}
    pending = [(root, "")]
    while pending:
        folder, above = pending.pop()
        with os.scandir(folder) as children:
            for child in children:
                path = above + child.name.decode("utf-8", "surrogateescape")
                if path in outputs:
                    continue
                state = found[path] = state_of(child.stat(follow_symlinks=False))
                if len(state) == 1 and state[0] & 0o700 != 0o700:
                    os.chmod(child.path, state[0] | 0o700)  # a job may have made it inaccessible
                if len(state) == 1:
                    pending.append((child.path, path + "/"))
    return found


def state_of(found: os.stat_result) -> list[int]:
    """Return the values that identify an unchanged file, or the mode of a folder."""
    if stat.S_ISDIR(found.st_mode):
        return [found.st_mode & 0o777]
    return [found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino]


def read_index(path: str) -> dict[str, Any]:
    """Return the index in a file, or an empty one if it is missing or invalid."""
    try:
        with open(path) as file:
            index = json.load(file)
        if index["format"] == FORMAT and {"digest", "states", "contents"} <= set(index):
            return dict(index)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return {"digest": "", "states": {}, "contents": {}}


class WorkTree:
    """The copy of a project in a slot: its current content, and the expected one."""

    def __init__(self, slot: slots.Slot, pulse: Callable[[], None], outputs: Sequence[str] = (OUTPUTS,)) -> None:
        """`outputs` are folders of the tree that are not part of the project."""
        self.slot, self._pulse = slot, pulse
        self._outputs = outputs
        self._root = os.fsencode(slot.tree)
        self._index = read_index(slot.index)
        self._found: dict[str, list[int]] = {}
        self._states: dict[str, list[int]] = {}
        self._entries: dict[str, list[Any]] = {}
        self._places: dict[str, list[str]] = {}
        self.sizes: dict[str, int] = {}
        """The size of each content that is missing from the tree, by digest."""

    @contextlib.contextmanager
    def permitted(self) -> Iterator[None]:
        """Raise RefusedError if a file cannot be changed, because a container's root created it."""
        try:
            yield
        except PermissionError as error:
            raise RefusedError("foreign-files", self.slot.tree) from error

    def is_already(self, digest: str) -> bool:
        """Scan the tree, and return whether it equals the project with this digest."""
        self._found = walk(self._root, self._outputs)
        return bool(self._index["digest"] == digest and self._found == self._index["states"])

    def expect(self, entries: list[list[Any]]) -> None:
        """Set the expected entries, folders before their content. Refuse a path that leads out of the tree."""
        folders = {""}
        for entry in entries:
            path, kind = entry[0], entry[1]
            above, _, name = path.rpartition("/")
            # Only in folders that were listed before, so that no link leads out of the tree.
            if above not in folders or name in {"", ".", ".."} or "\0" in path or path in self._outputs:
                raise RefusedError("protocol", f"invalid path: {path!r}")
            if kind == FOLDER:
                folders.add(path)
            self._entries[path] = entry

    def prepare(self, staging: StagingArea) -> list[tuple[str, int]]:
        """Remove wrong entries and place content that this machine has. Return the missing digests, with the number of
        bytes that have already arrived."""
        for path, state in self._found.items():
            if len(state) == 1 and state[0] & 0o700 != 0o700:
                os.chmod(self._full(path), state[0] | 0o700)
        for entry in self._entries.values():
            self._keep(entry)
        offsets = {digest: staging.offset(digest, self.sizes[digest]) for digest in self._places}
        self._copy(staging, offsets)
        # Before content arrives, because it may need the space.
        for path in reversed(list(self._found)):
            if path not in self._states:
                (os.rmdir if len(self._found[path]) == 1 else os.unlink)(self._full(path))
                self._pulse()
        self._create_empty()
        for digest, offset in offsets.items():
            if offset == self.sizes[digest]:
                self.place(digest, staging)
        return [(digest, offset) for digest, offset in offsets.items() if offset < self.sizes[digest]]

    def place(self, digest: str, staging: StagingArea) -> None:
        """Move a complete content from staging to every path that has it."""
        first, *others = self._places[digest]
        for path in others:
            self._duplicate(staging.path(digest), path)
        os.chmod(staging.path(digest), self._entries[first][2])
        os.rename(os.fsencode(staging.path(digest)), self._full(first))
        for path in self._places[digest]:
            self._states[path] = state_of(os.lstat(self._full(path)))

    def finish(self, digest: str) -> None:
        """Set the modes of folders, and write the index of the complete tree."""
        for path in reversed(list(self._entries)):
            kind, mode = self._entries[path][1:3]
            if kind == FOLDER:
                os.chmod(self._full(path), mode)
                self._states[path] = [mode]
        self.remember(digest)

    def remember(self, digest: str = "") -> None:
        """Write the index. An empty digest marks an incomplete tree."""
        contents = {path: self._entries[path][4] for path, state in self._states.items() if len(state) > 1}
        index = {"format": FORMAT, "digest": digest, "states": self._states, "contents": contents}
        home.replace(self.slot.index, json.dumps(index))

    def _full(self, path: str) -> bytes:
        return os.path.join(self._root, path.encode("utf-8", "surrogateescape"))

    def _keep(self, entry: list[Any]) -> None:
        """Keep an entry that is already correct, or note that its content is missing."""
        path, kind, mode, size, content = entry
        state = self._found.get(path)
        if state and self._is_correct(path, kind, size, content, state):
            if kind == FILE and state[0] & 0o7777 != mode:
                os.chmod(self._full(path), mode)
                state = state_of(os.lstat(self._full(path)))
            self._states[path] = state
        elif kind == FILE and size:
            self.sizes[content] = size
            self._places.setdefault(content, []).append(path)
        self._pulse()

    def _is_correct(self, path: str, kind: str, size: int, content: str, state: list[int]) -> bool:
        if len(state) == 1 or kind == FOLDER:
            return len(state) == 1 and kind == FOLDER
        if kind != {stat.S_IFREG: FILE, stat.S_IFLNK: LINK}.get(stat.S_IFMT(state[0])):
            return False
        if self._index["states"].get(path) == state:
            return bool(self._index["contents"].get(path) == content)
        if kind == LINK:
            return os.readlink(self._full(path)) == content.encode("utf-8", "surrogateescape")
        return state[1] == size and digest_of_file(self._full(path), self._pulse) == content

    def _copy(self, staging: StagingArea, offsets: dict[str, int]) -> None:
        """Copy missing content from this tree or other slots, so that it need not be sent."""
        missing = {digest for digest, offset in offsets.items() if offset < self.sizes[digest]}
        for source, digest in self._sources(missing):
            if digest in missing and staging.copy(digest, source):
                offsets[digest] = self.sizes[digest]
                missing.discard(digest)

    def _sources(self, missing: set[str]) -> Iterator[tuple[bytes, str]]:
        """Yield files that have missing content according to an index. The caller shrinks the set."""
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

    def _create_empty(self) -> None:
        """Create missing folders, links and empty files."""
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
