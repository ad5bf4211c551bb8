"""The folder that a job writes its outputs to, as it is looked at: nothing in it that leads out is followed."""

from __future__ import annotations

import errno
import os
import stat

DEEPEST = 100
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
        """List what there is."""
        self._look("", self._number, DEEPEST)

    def _look(self, prefix: str, number: int, depth: int) -> None:
        for name in sorted(os.listdir(number)):
            path = prefix + name
            try:
                found = os.stat(name, dir_fd=number, follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    self._enter(path, name, number, found.st_mode, depth)
                elif stat.S_ISREG(found.st_mode):
                    self.files.append((path, stamp(found), found.st_mode))
                elif stat.S_ISLNK(found.st_mode):
                    self._keep_link(path, os.readlink(name, dir_fd=number))
                else:
                    self.unreadable.append((path, "neither a file nor a folder"))
            except OSError as error:
                self.refuse(path, error)

    def _enter(self, path: str, name: str, number: int, mode: int, depth: int) -> None:
        if not depth:
            self.unreadable.append((path + "/", f"more than {DEEPEST} folders deep"))
            return
        try:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=number)
        except OSError as error:
            self.refuse(path + "/", error)
            return
        try:
            self.folders.append((path, mode & 0o777))
            self._look(path + "/", inner, depth - 1)
        finally:
            os.close(inner)

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
        if folder != self._near[0]:
            number = os.dup(self._number)
            for step in folder.split("/") if folder else ():
                try:
                    inner = os.open(step, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=number)
                finally:
                    os.close(number)
                number = inner
            self._let_go()
            self._near = (folder, number)
        # A file may have become a FIFO by now, which would be waited for.
        return os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._near[1])

    def _let_go(self) -> None:
        if self._near[1] != self._number:
            os.close(self._near[1])
        self._near = ("", self._number)

    def close(self) -> None:
        """Let go of it."""
        self._let_go()
        os.close(self._number)
