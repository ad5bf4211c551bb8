"""The folder that a job writes its outputs to, as it is looked at: nothing in it that leads out is followed."""

from __future__ import annotations

import errno
import os
import stat

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
        """List what there is."""
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
