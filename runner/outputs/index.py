"""The index of fetched outputs: the state and digest of each file."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import IO, Any, NamedTuple

from gpuinfra.workspace import write_text

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
