"""What was fetched of a run's outputs: a line a file, written down as each is whole, so that nothing comes twice."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import IO, Any, NamedTuple

FILE, PART = "file", "part"
# More lines than this for each file, and it is written anew.
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
        self._write([PART, path, *stamp])

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
        if kind == FILE:
            self.parts.pop(str(path), None)
            self.files[str(path)] = (stamp, str(line[5]))
        elif kind == PART:
            self.parts[str(path)] = stamp

    def _compact(self) -> None:
        fresh = self._path.with_name(f"{self._path.name}.new")
        lines = [_file_line(path, stamp, digest) for path, (stamp, digest) in self.files.items()]
        lines += [[PART, path, *stamp] for path, stamp in self.parts.items()]
        fresh.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        fresh.replace(self._path)


def _file_line(path: str, stamp: Stamp, digest: str) -> list[Any]:
    return [FILE, path, *stamp, digest]
