"""The fetched outputs of runs: list them, compare those of two runs, and copy them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.outputs import FileDifference, KeptFile, Unlike

CHUNK = 1 << 20
# Programs run or trust the content of these folders, such as git hooks and target files.
RESERVED = frozenset({".git", ".gpuinfra", "aml_config"})


def kept_files(folder: Path) -> list[KeptFile]:
    """Return all files and links below a folder, sorted by name, without following links. It may be missing."""
    return sorted(_walk(folder), key=lambda file: file.name)


def _walk(folder: Path) -> Iterator[KeptFile]:
    waiting = [""]
    while waiting:
        below = waiting.pop()
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
                waiting.append(f"{name}/")
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
