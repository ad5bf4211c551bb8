"""The outputs of a run on this computer: the folder, the index of what was fetched, and partial files."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from gpuinfra.diagnostics import Code
from gpuinfra.remote.folder import leads_inside, own_name
from gpuinfra.runner.errors import JobError

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


FILE_LINE, PART_LINE = "file", "part"
# With more lines than this for each file, the index is rewritten.
MOST_LINES_EACH = 3


class Stamp(NamedTuple):
    """By what a file on the target is known not to have changed."""

    size: int
    mtime: int
    ctime: int


class OutputsIndex:
    """Files that are whole, with their digests, and large ones that are not yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.files: dict[str, tuple[Stamp, str]] = {}
        self.parts: dict[str, Stamp] = {}
        lines = self._read()
        if lines > MOST_LINES_EACH * (len(self.files) + len(self.parts) + 10):
            self._compact()
        self._file: IO[str] = path.open("a", encoding="utf-8")
        if lines:
            self._file.write("\n")  # the last line may be torn

    def add_file(self, path: str, stamp: Stamp, digest: str) -> None:
        """One that is whole."""
        self.parts.pop(path, None)
        self.files[path] = (stamp, digest)
        self._write(_file_line(path, stamp, digest))

    def add_part(self, path: str, stamp: Stamp) -> None:
        """A large one that begins to come."""
        self.parts[path] = stamp
        self._write([PART_LINE, path, *stamp])

    def close(self) -> None:
        """Let go of it."""
        with contextlib.suppress(OSError):  # what a full disk did not take is only fetched again
            self._file.close()

    def _write(self, line: list[Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _read(self) -> int:
        """How many lines there are. A broken one is passed over: its file is only fetched again."""
        count = 0
        with contextlib.suppress(FileNotFoundError), self._path.open(encoding="utf-8", errors="replace") as lines:
            for count, line in enumerate(lines, 1):  # noqa: B007 the last one counts
                with contextlib.suppress(ValueError, TypeError, IndexError):
                    self._take(json.loads(line))
        return count

    def _take(self, line: Any) -> None:
        kind, path, size, mtime, ctime = line[:5]
        stamp = Stamp(int(size), int(mtime), int(ctime))
        if kind == FILE_LINE:
            self.parts.pop(str(path), None)
            self.files[str(path)] = (stamp, str(line[5]))
        elif kind == PART_LINE:
            self.parts[str(path)] = stamp

    def _compact(self) -> None:
        fresh = self._path.with_name(f"{self._path.name}.new")
        lines = [_file_line(path, stamp, digest) for path, (stamp, digest) in self.files.items()]
        lines += [[PART_LINE, path, *stamp] for path, stamp in self.parts.items()]
        fresh.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        fresh.replace(self._path)


def _file_line(path: str, stamp: Stamp, digest: str) -> list[Any]:
    return [FILE_LINE, path, *stamp, digest]


INDEX_FILE, PARTS_FOLDER = "outputs-index", "outputs-partial"


class Store:
    """The folder, the index beside it, and files that are not whole."""

    def __init__(self, into: Path) -> None:
        self.parts = into.parent / PARTS_FOLDER
        self.parts.mkdir(parents=True, exist_ok=True)
        self.index = OutputsIndex(into.parent / INDEX_FILE)
        self.folder = OutputsFolder(into)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.__exit__(None, None, None)
        self.index.close()
        with contextlib.suppress(OSError):
            self.parts.rmdir()  # where nothing is in it

    def known(self) -> Iterator[list[Any]]:
        """Files that are here as they were fetched. Files that were changed or removed here are forgotten."""
        for path, (stamp, content) in list(self.index.files.items()):
            if self.folder.stamp(own_name(path)) == (stamp.size, stamp.mtime):
                yield [path, *stamp, content]
            else:
                del self.index.files[path]

    def parts_known(self) -> Iterator[list[Any]]:
        """How much of large files is here. What else is left of earlier times is removed."""
        kept = set()
        for path, stamp in self.index.parts.items():
            with contextlib.suppress(OSError):
                size = self.part(path).stat().st_size
                if 0 < size <= stamp.size:
                    kept.add(self.part(path))
                    yield [path, size, *stamp]
        for other in self.parts.iterdir():
            if other not in kept:
                other.unlink()

    def part(self, path: str) -> Path:
        """Where a file is kept until it is whole."""
        return self.parts / hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
