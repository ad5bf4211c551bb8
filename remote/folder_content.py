"""The content of a folder that others can change at any time: read without following links out of it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Linux accepts paths of up to 4095 bytes. On the client, the path of the run's folder comes first.
MAX_PATH_BYTES = 3500
PERMISSION = "permission"
LEADS_OUT = "a symbolic link that leads out of `outputs`"


def wire_name(path: str) -> str:
    """Encode a local path for the wire. It does not depend on this machine's encoding of names."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def own_name(path: str) -> str:
    """Decode a path from the wire to a local one."""
    return os.fsdecode(path.encode("utf-8", "surrogateescape"))


def leads_inside(link: str, target: str) -> bool:
    """Return whether a symbolic link's target stays in the folder, even through other links. Paths are relative."""
    steps = [step for step in target.split("/") if step not in {"", "."}]
    up = 0
    while up < len(steps) and steps[up] == "..":
        up += 1
    return not target.startswith("/") and up <= link.count("/") and ".." not in steps[up:]


def stamp(found: os.stat_result) -> list[int]:
    """Return the values that identify an unchanged file."""
    return [found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def reason_of(error: OSError) -> str:
    """Return why something cannot be read."""
    return PERMISSION if error.errno in {errno.EACCES, errno.EPERM} else os.strerror(error.errno or 0)


def open_folder(parent: int, name: str) -> int:
    """Open a folder in an open folder. Raise OSError if it is a link."""
    return os.open(name, OPEN_FOLDER, dir_fd=parent)


class OpenFolder:
    """An open folder. The folders in it are opened name by name, so that a link in a path is never followed."""

    def __init__(self, number: int) -> None:
        self._top = number
        self._last: tuple[str, int] = ("", number)

    def enter(self, folder: str, open_inner: Callable[[int, str], int] = open_folder) -> int:
        """Open a folder, starting from the last one if it is inside it. It stays open until another one is opened."""
        last, number = self._last
        if folder == last:
            return number
        is_below = bool(last) and folder.startswith(f"{last}/")
        number = os.dup(number if is_below else self._top)
        rest = folder[len(last) + 1 :] if is_below else folder
        for name in rest.split("/") if rest else ():
            try:
                inner = open_inner(number, name)
            finally:
                os.close(number)
            number = inner
        self._close_last()
        self._last = (folder, number)
        return number

    def _close_last(self) -> None:
        if self._last[1] != self._top:
            os.close(self._last[1])
        self._last = ("", self._top)

    def close(self) -> None:
        """Close all open folders."""
        self._close_last()
        os.close(self._top)


class FolderContent(OpenFolder):
    """The content of a folder of outputs."""

    def __init__(self, top: str, place: str = "", in_container: str = "/project/outputs") -> None:
        """`place` is the folder's path among the outputs, and `in_container` its path for a job in a container."""
        super().__init__(os.open(top, OPEN_FOLDER))
        self._place = place
        self._paths = (top, os.path.realpath(top), in_container)
        self.files: list[tuple[str, list[int], int]] = []
        self.links: list[tuple[str, str]] = []
        self.folders: list[tuple[str, int]] = []
        self.unreadable: list[tuple[str, str]] = []

    def name(self, path: str) -> str:
        """Return the name of a path in the folder among the outputs, encoded for the wire."""
        return wire_name("/".join(each for each in (self._place, path) if each))

    def scan(self) -> None:
        """List the folder's content."""
        pending = [("", os.fstat(self._top).st_mode)]
        while pending:
            path, mode = pending.pop()
            try:
                number = self.enter(path)
                names = sorted(os.listdir(number))
            except OSError as error:
                self.note_unreadable(f"{path}/" if path else "", error)
                continue
            if path or self._place:
                self.folders.append((path, mode & 0o777))
            inner = [self._add(f"{path}/{name}" if path else name, name, number) for name in names]
            pending += reversed([each for each in inner if each])

    def _add(self, path: str, name: str, number: int) -> tuple[str, int] | None:
        """List one entry of an open folder. If it is a folder itself, return its path and mode, to enter it later."""
        try:
            found = os.stat(name, dir_fd=number, follow_symlinks=False)
            if len(os.fsencode(path)) > MAX_PATH_BYTES:
                self.unreadable.append((path, f"its path has more than {MAX_PATH_BYTES} bytes"))
            elif stat.S_ISDIR(found.st_mode):
                return path, found.st_mode
            elif stat.S_ISREG(found.st_mode):
                self.files.append((path, stamp(found), found.st_mode))
            elif stat.S_ISLNK(found.st_mode):
                self._add_link(path, os.readlink(name, dir_fd=number))
            else:
                self.unreadable.append((path, "neither a file nor a folder"))
        except OSError as error:
            self.note_unreadable(path, error)
        return None

    def _add_link(self, path: str, target: str) -> None:
        for top in self._paths:
            if target == top or target.startswith(top + "/"):
                target = os.path.relpath(target, os.path.join(top, os.path.dirname(path)))
                break
        if leads_inside(path, target):
            self.links.append((path, target))
        else:
            self.unreadable.append((path, LEADS_OUT))

    def note_unreadable(self, path: str, error: OSError) -> bool:
        """Note a path that cannot be read, and why. Return False if it was removed or replaced in the meantime."""
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
            return False
        self.unreadable.append((path, reason_of(error)))
        return True

    def open(self, path: str) -> int:
        """Open a file for reading."""
        folder, _, name = path.rpartition("/")
        # Do not block if the file was replaced by a FIFO.
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.enter(folder))
