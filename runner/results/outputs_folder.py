"""A folder that what a machine sends is written into, and never out of: no path is taken on trust, no link followed."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from gpuinfra.diagnostics import Code
from gpuinfra.remote.outputs_folder import leads_inside
from gpuinfra.runner.jobs.port import JobError

INTO = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# The user has to be able to read what was fetched, and to write into folders again.
LEAST_FILE_MODE, LEAST_FOLDER_MODE = 0o400, 0o700


def check_path(path: str) -> None:
    """A relative path of plain names, or JobError."""
    if "\0" in path or any(step in {"", ".", ".."} for step in path.split("/")):
        raise _distrusted(repr(path))


def _distrusted(what: str) -> JobError:
    summary = "the target sent a path that leads elsewhere"
    return JobError(summary, what, "do not trust that machine", Code.OUTPUTS_INCOMPLETE)


class OutputsFolder:
    """The folder, entered name by name. Raises OSError, and JobError for what no honest machine sends."""

    def __init__(self, top: Path) -> None:
        top.mkdir(parents=True, exist_ok=True)
        self._top = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # Where the last one was put the next one likely goes.
        self._near: tuple[str, int] = ("", self._top)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()
        os.close(self._top)

    def place(self, temporary: Path, path: str) -> None:
        """Give a file that is whole its name, in the place of whatever has it."""
        folder, name = self._parent(path)
        try:
            os.replace(temporary, name, dst_dir_fd=folder)
        except IsADirectoryError:
            _set_aside(folder, name)
            os.replace(temporary, name, dst_dir_fd=folder)

    def make(self, path: str, mode: int) -> None:
        """A folder; one that is there is as good."""
        folder, name = self._parent(path)
        inner = _entered(folder, name, mode)
        os.close(inner)

    def link(self, path: str, target: str) -> None:
        """A symbolic link, which has to stay inside."""
        if not target or "\0" in target or not leads_inside(path, target):
            raise _distrusted(f"{path!r}, a link to {target!r}")
        folder, name = self._parent(path)
        with contextlib.suppress(OSError):
            if os.readlink(name, dir_fd=folder) == target:
                return
            os.unlink(name, dir_fd=folder)  # a link that leads elsewhere now; there is nothing in it to be lost
        try:
            os.symlink(target, name, dir_fd=folder)
        except FileExistsError:
            _set_aside(folder, name)
            os.symlink(target, name, dir_fd=folder)

    def stamp(self, path: str) -> tuple[int, int] | None:
        """Size and time of a file that is there; None where none is."""
        try:
            folder, name = self._parent(path, is_made=False)
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None
        return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None

    def touch(self, path: str, mtime: int) -> None:
        """Give a file its time, in nanoseconds since 1970."""
        folder, name = self._parent(path)
        os.utime(name, ns=(mtime, mtime), dir_fd=folder, follow_symlinks=False)

    def _parent(self, path: str, *, is_made: bool = True) -> tuple[int, str]:
        check_path(path)
        folder, _, name = path.rpartition("/")
        near, number = self._near
        if folder != near:
            is_below = bool(near) and folder.startswith(f"{near}/")
            number = os.dup(number if is_below else self._top)
            rest = folder[len(near) + 1 :] if is_below else folder
            for step in rest.split("/") if rest else ():
                try:
                    inner = _entered(number, step) if is_made else os.open(step, INTO, dir_fd=number)
                finally:
                    os.close(number)
                number = inner
            self._let_go()
            self._near = (folder, number)
        return self._near[1], name

    def _let_go(self) -> None:
        if self._near[1] != self._top:
            os.close(self._near[1])
        self._near = ("", self._top)


def _entered(folder: int, name: str, mode: int = 0o755) -> int:
    """A folder in a folder, made where it is missing; what else has the name is set aside."""
    try:
        os.mkdir(name, mode & 0o777 | LEAST_FOLDER_MODE, dir_fd=folder)
    except FileExistsError:
        try:
            return os.open(name, INTO, dir_fd=folder)
        except OSError as error:
            if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
                raise
        _set_aside(folder, name)
        os.mkdir(name, mode & 0o777 | LEAST_FOLDER_MODE, dir_fd=folder)
    return os.open(name, INTO, dir_fd=folder)


def _set_aside(folder: int, name: str) -> None:
    """What was fetched earlier and is something else now on the target: nothing that is here is deleted."""
    for number in range(1, 10_000):
        other = f"{name}.before-{number}"
        try:
            os.stat(other, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(name, other, src_dir_fd=folder, dst_dir_fd=folder)
            return
