"""Outputs that are here: which files a run left, how those of two runs differ, and copies of them."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem

CHUNK = 1 << 20
# Programs run, or trust, what is in these folders: git hooks, target files, what gpuinfra remembers.
RESERVED = frozenset({".git", ".gpuinfra", "aml_config"})


@dataclass(frozen=True, slots=True)
class KeptFile:
    """One file, or one symbolic link, below a run's outputs."""

    name: str
    """With `/` between folders."""
    size: int
    link: str | None = None
    """Where it leads, if it is a link."""

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        found = {"name": self.name, "size": self.size, "link": self.link}
        return {key: value for key, value in found.items() if value is not None}


class Unlike(StrEnum):
    """How a file of one run differs from that of another."""

    ONLY_A = "only-a"
    ONLY_B = "only-b"
    SIZE = "size"
    CONTENT = "content"


@dataclass(frozen=True, slots=True)
class FileDifference:
    """A file that two runs do not both have as it is."""

    name: str
    how: Unlike
    a: int | None
    """Its size there; None where it is not there."""
    b: int | None

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"name": self.name, "difference": self.how.value, "a": self.a, "b": self.b}


def kept_files(folder: Path) -> list[KeptFile]:
    """All below it, in the order of their names; links are not followed. A folder that is not there has none."""
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
                # A link that leads nowhere is kept as it is.
                yield KeptFile(name, 0, os.readlink(entry.path))  # noqa: PTH115
            elif entry.is_dir(follow_symlinks=False):
                waiting.append(f"{name}/")
            elif entry.is_file(follow_symlinks=False):
                yield KeptFile(name, entry.stat(follow_symlinks=False).st_size)


def compare(a: Path, b: Path) -> list[FileDifference]:
    """How the files below two folders differ. Content is read only where the sizes are the same."""
    ours, theirs = ({file.name: file for file in kept_files(folder)} for folder in (a, b))
    found = []
    for name in sorted({*ours, *theirs}):
        here, there = ours.get(name), theirs.get(name)
        how = _unlike(here, there, a, b)
        if how:
            found.append(FileDifference(name, how, here.size if here else None, there.size if there else None))
    return found


def _unlike(here: KeptFile | None, there: KeptFile | None, a: Path, b: Path) -> Unlike | None:
    if here is None or there is None:
        return Unlike.ONLY_B if here is None else Unlike.ONLY_A
    if here.size != there.size:
        return Unlike.SIZE
    if here.link != there.link:
        return Unlike.CONTENT
    return None if here.link is not None or _is_same(a / here.name, b / there.name) else Unlike.CONTENT


def _is_same(a: Path, b: Path) -> bool:
    return _digest(a) == _digest(b)


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def copy_outputs(folder: Path, destination: Path, *, replace: bool) -> list[KeptFile]:
    """Copy all to another folder, each file whole or not at all, modes and links kept; what was copied.

    What has another content there is left alone, and nothing is copied at all, unless it is to be replaced.
    """
    files = kept_files(folder)
    if own := [file.name for file in files if RESERVED & {part.casefold() for part in PurePosixPath(file.name).parts}]:
        raise _reserved(own)
    with _explained(destination):
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
    note = f"the job wrote `{names[0]}`{more}: programs run, or trust, what is in such a folder; nothing was copied"
    help_line = "copy what you need by hand from the folder that `gpuinfra outputs ID` prints"
    return Problem(Diagnostic(Code.FILE_UNWRITABLE, "outputs with a reserved name", note=note, help=help_line))


def _taken(destination: Path, names: list[str]) -> Problem:
    more = f", and {len(names) - 1} more" if len(names) > 1 else ""
    note = f"`{destination / names[0]}` is something else already{more}; nothing was copied"
    help_text = "give another folder, or `--yes` to replace files"
    return Problem(Diagnostic(Code.FILE_EXISTS, "file exists", note=note, help=help_text), exit_code=Exit.USAGE)


def _is_blocked(destination: Path, name: str) -> bool:
    """Whether a folder on the way is none. A link would lead elsewhere: an earlier run may have left it there."""
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
        with tempfile.TemporaryDirectory(prefix=".gpuinfra-", dir=target.parent) as aside:
            made = Path(aside) / "link"
            made.symlink_to(link)
            made.replace(target)
        return
    descriptor, name = tempfile.mkstemp(prefix=".gpuinfra-", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as writing, source.open("rb") as reading:
            shutil.copyfileobj(reading, writing, CHUNK)
        found = source.stat()
        Path(name).chmod(stat.S_IMODE(found.st_mode))
        os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns))
        Path(name).replace(target)
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(name).unlink()


@contextlib.contextmanager
def _explained(destination: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = error.filename2 or error.filename or destination
        note = f"`{where}`: {error.strerror}"
        help_text = "give another folder; what was copied so far is whole"
        raise Problem(
            Diagnostic(Code.FILE_UNWRITABLE, "outputs cannot be copied", note=note, help=help_text)
        ) from error
