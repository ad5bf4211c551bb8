"""The digests of files that were read before, on this computer."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from gpuinfra.workspace import write_text

INDEX_FILE = "upload-index"
INDEX_FORMAT = 2
# A file that changes twice within a clock tick keeps its stamp. So the digest of a recent file is not stored.
RACY_NS = 2_000_000_000


def stamp_of(stat: os.stat_result) -> str:
    """Return a text that identifies an unchanged file. Text, because thousands of lists are slow to parse."""
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino} "


class Index:
    """Digests by path. Without a folder, nothing is stored."""

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / INDEX_FILE if folder else None
        self._before = _read(self._file) if self._file else {}
        self._now: dict[str, str] = {}

    def digest(self, path: str, stat: os.stat_result) -> str | None:
        """Return the stored digest of a file, or None if the file has changed."""
        entry, same = self._before.get(path), stamp_of(stat)
        if entry is None or not entry.startswith(same):
            return None
        self._now[path] = entry
        return entry[len(same) :]

    def remember(self, path: str, stat: os.stat_result, digest: str, read_at_ns: int) -> None:
        """Store the digest of a file, unless the file is so recent that a later change could be missed."""
        if max(stat.st_mtime_ns, stat.st_ctime_ns) < read_at_ns - RACY_NS:
            self._now[path] = stamp_of(stat) + digest

    def save(self) -> None:
        """Write the index. If that fails, the next upload reads all files again."""
        if self._file is None or self._now == self._before:
            return
        with contextlib.suppress(OSError):
            content = json.dumps({"format": INDEX_FORMAT, "files": self._now}, separators=(",", ":"))
            write_text(self._file, content, replace=True)


def _read(file: Path) -> dict[str, str]:
    try:
        found = json.loads(file.read_bytes())
        entries = found["files"] if found["format"] == INDEX_FORMAT else {}
        if set(map(type, entries.values())) <= {str}:
            return dict(entries)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # an invalid index counts as empty
    return {}
