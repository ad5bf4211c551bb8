"""The folder of a run's outputs on this computer: write files into it without following links."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import Self

from gpuinfra.diagnostics import Code
from gpuinfra.remote.folder import OpenFolder, leads_inside, open_folder
from gpuinfra.runner.errors import JobError

# The user must be able to read fetched files, and to write into fetched folders again.
MIN_FILE_MODE, MIN_FOLDER_MODE = 0o400, 0o700


def check_path(path: str) -> None:
    """Raise JobError unless this is a relative path of plain names."""
    if "\0" in path or any(step in {"", ".", ".."} for step in path.split("/")):
        raise _untrusted(repr(path))


def _untrusted(what: str) -> JobError:
    summary = "the target sent a path outside `outputs`"
    return JobError(summary, what, "do not trust this machine", Code.OUTPUTS_INCOMPLETE)


class OutputsFolder(OpenFolder):
    """The folder of a run's outputs. Raises OSError, and JobError for a path that leads out of it."""

    def __init__(self, top: Path) -> None:
        top.mkdir(parents=True, exist_ok=True)
        super().__init__(os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def place(self, temporary: Path, path: str) -> None:
        """Move a complete file to its path. It replaces a file; a folder with its name is renamed."""
        folder, name = self._parent(path)
        try:
            os.replace(temporary, name, dst_dir_fd=folder)
        except IsADirectoryError:
            _set_aside(folder, name)
            os.replace(temporary, name, dst_dir_fd=folder)

    def make(self, path: str, mode: int) -> None:
        """Create a folder, unless it exists."""
        folder, name = self._parent(path)
        os.close(_make_folder(folder, name, mode))

    def link(self, path: str, target: str) -> None:
        """Create a symbolic link. Refuse one that leads out of the folder."""
        if not target or "\0" in target or not leads_inside(path, target):
            raise _untrusted(f"{path!r}, a link to {target!r}")
        folder, name = self._parent(path)
        with contextlib.suppress(OSError):
            if os.readlink(name, dir_fd=folder) == target:
                return
            os.unlink(name, dir_fd=folder)  # a link with another target: nothing is lost
        try:
            os.symlink(target, name, dir_fd=folder)
        except FileExistsError:
            _set_aside(folder, name)
            os.symlink(target, name, dir_fd=folder)

    def stamp(self, path: str) -> tuple[int, int] | None:
        """Return the size and modification time of a file, or None if there is no such file."""
        try:
            folder, name = self._parent(path, create=False)
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        except OSError:
            return None
        return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None

    def touch(self, path: str, mtime: int) -> None:
        """Set a file's modification time, in nanoseconds since 1970."""
        folder, name = self._parent(path)
        os.utime(name, ns=(mtime, mtime), dir_fd=folder, follow_symlinks=False)

    def _parent(self, path: str, *, create: bool = True) -> tuple[int, str]:
        check_path(path)
        folder, _, name = path.rpartition("/")
        return self.enter(folder, _make_folder if create else open_folder), name


def _make_folder(folder: int, name: str, mode: int = 0o755) -> int:
    """Open a folder in a folder. Create it if it is missing, and rename what else has its name."""
    try:
        os.mkdir(name, mode & 0o777 | MIN_FOLDER_MODE, dir_fd=folder)
    except FileExistsError:
        try:
            return open_folder(folder, name)
        except OSError as error:
            if error.errno not in {errno.ENOTDIR, errno.ELOOP}:
                raise
        _set_aside(folder, name)
        os.mkdir(name, mode & 0o777 | MIN_FOLDER_MODE, dir_fd=folder)
    return open_folder(folder, name)


def _set_aside(folder: int, name: str) -> None:
    """Rename what an earlier fetch wrote and is now of another kind on the target, so that nothing is deleted."""
    for number in range(1, 10_000):
        other = f"{name}.before-{number}"
        try:
            os.stat(other, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(name, other, src_dir_fd=folder, dst_dir_fd=folder)
            return
