"""Outputs on this computer: write them without following links, index, compare and copy them."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.run import FileDifference, KeptFile, Unlike
from gpuinfra.remote.folder_content import OpenFolder, leads_inside, open_folder, own_name
from gpuinfra.runner.errors import JobError
from gpuinfra.workspace import write_text

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


FILE_LINE, PART_LINE = "file", "part"
# With more lines per file than this, the index is rewritten.
MAX_LINES_PER_FILE = 3


class Stamp(NamedTuple):
    """The values that identify an unchanged file on the target."""

    size: int
    mtime: int
    ctime: int


class OutputsIndex:
    """Complete files with their digests, and partial large files."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.files: dict[str, tuple[Stamp, str]] = {}
        self.parts: dict[str, Stamp] = {}
        lines = self._read()
        if lines > MAX_LINES_PER_FILE * (len(self.files) + len(self.parts) + 10):
            self._compact()
        self._file: IO[str] = path.open("a", encoding="utf-8")
        if lines:
            self._file.write("\n")  # the last line may be incomplete

    def add_file(self, path: str, stamp: Stamp, digest: str) -> None:
        """Add a complete file."""
        self.parts.pop(path, None)
        self.files[path] = (stamp, digest)
        self._write(_file_line(path, stamp, digest))

    def add_part(self, path: str, stamp: Stamp) -> None:
        """Add a large file whose transfer starts."""
        self.parts[path] = stamp
        self._write([PART_LINE, path, *stamp])

    def close(self) -> None:
        """Close the index file."""
        with contextlib.suppress(OSError):  # a lost line only means that its file is fetched again
            self._file.close()

    def _write(self, line: list[Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()

    def _read(self) -> int:
        """Read the index, and return the number of lines. Invalid lines are skipped: their files are fetched again."""
        count = 0
        with contextlib.suppress(FileNotFoundError), self._path.open(encoding="utf-8", errors="replace") as lines:
            for count, line in enumerate(lines, 1):  # noqa: B007 the last number is returned
                with contextlib.suppress(ValueError, TypeError, IndexError):
                    self._add(json.loads(line))
        return count

    def _add(self, line: Any) -> None:
        kind, path, size, mtime, ctime = line[:5]
        stamp = Stamp(int(size), int(mtime), int(ctime))
        if kind == FILE_LINE:
            self.parts.pop(str(path), None)
            self.files[str(path)] = (stamp, str(line[5]))
        elif kind == PART_LINE:
            self.parts[str(path)] = stamp

    def _compact(self) -> None:
        lines = [_file_line(path, stamp, digest) for path, (stamp, digest) in self.files.items()]
        lines += [[PART_LINE, path, *stamp] for path, stamp in self.parts.items()]
        write_text(self._path, "".join(json.dumps(line) + "\n" for line in lines), replace=True)


def _file_line(path: str, stamp: Stamp, digest: str) -> list[Any]:
    return [FILE_LINE, path, *stamp, digest]


INDEX_FILE, PARTS_FOLDER = "outputs-index", "outputs-partial"


class Store:
    """The folder of outputs, with the index and the partial files next to it."""

    def __init__(self, into: Path) -> None:
        self.parts = into.parent / PARTS_FOLDER
        self.parts.mkdir(parents=True, exist_ok=True)
        self.index = OutputsIndex(into.parent / INDEX_FILE)
        self.folder = OutputsFolder(into)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.close()
        self.index.close()
        with contextlib.suppress(OSError):
            self.parts.rmdir()  # fails unless it is empty

    def known(self) -> Iterator[list[Any]]:
        """Yield fetched files that are unchanged here. Others are removed from the index, to be fetched again."""
        for path, (stamp, content) in list(self.index.files.items()):
            if self.folder.stamp(own_name(path)) == (stamp.size, stamp.mtime):
                yield [path, *stamp, content]
            else:
                del self.index.files[path]

    def parts_known(self) -> Iterator[list[Any]]:
        """Yield how much of each partial file is here, and remove other files."""
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
        """Return the path of a file while it is incomplete."""
        return self.parts / hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()


CHUNK = 1 << 20
# Programs run or trust the content of these folders, such as git hooks and target files.
RESERVED = frozenset({".git", ".gpuinfra", "aml_config"})


def kept_files(folder: Path) -> list[KeptFile]:
    """Return all files and links below a folder, sorted by name, without following links. It may be missing."""
    return sorted(_walk(folder), key=lambda file: file.name)


def _walk(folder: Path) -> Iterator[KeptFile]:
    pending = [""]
    while pending:
        below = pending.pop()
        try:
            entries = list(os.scandir(folder / below))
        except FileNotFoundError:
            continue
        for entry in entries:
            name = f"{below}{entry.name}"
            if entry.is_symlink():
                # Also a link whose target does not exist.
                yield KeptFile(name, 0, os.readlink(entry.path))  # noqa: PTH115
            elif entry.is_dir(follow_symlinks=False):
                pending.append(f"{name}/")
            elif entry.is_file(follow_symlinks=False):
                yield KeptFile(name, entry.stat(follow_symlinks=False).st_size)


def compare(a: Path, b: Path) -> list[FileDifference]:
    """Return the differences between the files in two folders. Content is read only if the sizes are equal."""
    in_a, in_b = ({file.name: file for file in kept_files(folder)} for folder in (a, b))
    found = []
    for name in sorted({*in_a, *in_b}):
        first, second = in_a.get(name), in_b.get(name)
        how = _difference(first, second, a, b)
        if how:
            found.append(FileDifference(name, how, first.size if first else None, second.size if second else None))
    return found


def _difference(first: KeptFile | None, second: KeptFile | None, a: Path, b: Path) -> Unlike | None:
    if first is None or second is None:
        return Unlike.ONLY_B if first is None else Unlike.ONLY_A
    if first.size != second.size:
        return Unlike.SIZE
    if first.link != second.link:
        return Unlike.CONTENT
    is_same = first.link is not None or _is_same(a / first.name, b / second.name)
    return None if is_same else Unlike.CONTENT


def _is_same(a: Path, b: Path) -> bool:
    return _digest(a) == _digest(b)


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def copy_outputs(folder: Path, destination: Path, *, replace: bool) -> list[KeptFile]:
    """Copy all outputs to another folder, with modes and links, each file atomically. Return what was copied.

    Without `replace`, nothing is copied if a file with other content exists there.
    """
    files = kept_files(folder)
    if own := [file.name for file in files if RESERVED & {part.casefold() for part in PurePosixPath(file.name).parts}]:
        raise _reserved(own)
    with _write_errors(destination):
        taken = [file.name for file in files if _is_blocked(destination, file.name)]
        if not replace:
            taken += [file.name for file in files if _is_taken(folder / file.name, destination / file.name)]
        if taken:
            raise _taken(destination, taken)
        destination.mkdir(parents=True, exist_ok=True)
        for file in files:
            _copy(folder / file.name, destination / file.name, file.link)
    return files


def _reserved(names: list[str]) -> Problem:
    more = f", and {len(names) - 1} more" if len(names) > 1 else ""
    note = f"the job wrote `{names[0]}`{more}: programs run or trust the files in such a folder; nothing was copied"
    help_line = "copy what you need manually from the folder that `gpuinfra outputs ID` prints"
    return Problem(Diagnostic(Code.FILE_UNWRITABLE, "outputs with a reserved name", note=note, help=help_line))


def _taken(destination: Path, names: list[str]) -> Problem:
    more = f", and {len(names) - 1} more" if len(names) > 1 else ""
    note = f"`{destination / names[0]}` exists with other content{more}; nothing was copied"
    help_text = "choose another folder, or add `--yes` to replace files"
    return Problem(Diagnostic(Code.FILE_EXISTS, "file exists", note=note, help=help_text), exit_code=Exit.USAGE)


def _is_blocked(destination: Path, name: str) -> bool:
    """Return whether a parent folder is a file, or a link, which an earlier run may have left there."""
    folders = list(Path(name).parents)[:-1]
    return any((destination / each).is_symlink() or (destination / each).is_file() for each in folders)


def _is_taken(source: Path, target: Path) -> bool:
    if not os.path.lexists(target):
        return False
    if source.is_symlink() or target.is_symlink():
        return not (source.is_symlink() and target.is_symlink() and source.readlink() == target.readlink())
    same_size = target.is_file() and target.stat().st_size == source.stat().st_size
    return not (same_size and _is_same(source, target))


def _copy(source: Path, target: Path, link: str | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if link is not None:
        with tempfile.TemporaryDirectory(prefix=".gpuinfra-", dir=target.parent) as staging:
            new_link = Path(staging) / "link"
            new_link.symlink_to(link)
            new_link.replace(target)
        return
    descriptor, name = tempfile.mkstemp(prefix=".gpuinfra-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as target_file, source.open("rb") as source_file:
            shutil.copyfileobj(source_file, target_file, CHUNK)
        found = source.stat()
        Path(name).chmod(stat.S_IMODE(found.st_mode))
        os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns))
        Path(name).replace(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()


@contextlib.contextmanager
def _write_errors(destination: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename2 or error.filename or destination
        note = f"`{where}`: {error.strerror}"
        help_text = "choose another folder; the files that were copied are complete"
        raise Problem(
            Diagnostic(Code.FILE_UNWRITABLE, "outputs cannot be copied", note=note, help=help_text)
        ) from error
