"""What is remembered of files that were read before, so that only those that changed are read again."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from pathlib import Path

NAME = "upload-index"
FORMAT = 2
# A file that changes twice in a tick of the clock looks the same afterwards; git has the same trouble and remedy.
RACY_NS = 2_000_000_000


def known(stat: os.stat_result) -> str:
    """By what a file is taken for the one that was read. Text, for ten thousand lists are slow to read back."""
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns} {stat.st_ino} "


class Index:
    """Digests by path. Where there is no folder to keep it in, nothing is remembered."""

    def __init__(self, folder: Path | None) -> None:
        self._file = folder / NAME if folder else None
        self._before = _read(self._file) if self._file else {}
        self._now: dict[str, str] = {}

    def digest(self, path: str, stat: os.stat_result) -> str | None:
        """Of a file that is as it was when it was read."""
        entry, same = self._before.get(path), known(stat)
        if entry is None or not entry.startswith(same):
            return None
        self._now[path] = entry
        return entry[len(same) :]

    def remember(self, path: str, stat: os.stat_result, digest: str, read_at_ns: int) -> None:
        """A file that was read at that time, unless it could have changed since without a trace."""
        if max(stat.st_mtime_ns, stat.st_ctime_ns) < read_at_ns - RACY_NS:
            self._now[path] = known(stat) + digest

    def save(self) -> None:
        """For the next time. It is a help and no more: where it cannot be written, all is read again."""
        if self._file is None or self._now == self._before:
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{NAME}-", dir=self._file.parent)
            try:
                with os.fdopen(handle, "w") as file:
                    file.write(json.dumps({"format": FORMAT, "files": self._now}, separators=(",", ":")))
                Path(name).replace(self._file)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise


def _read(file: Path) -> dict[str, str]:
    try:
        found = json.loads(file.read_bytes())
        entries = found["files"] if found["format"] == FORMAT else {}
        if set(map(type, entries.values())) <= {str}:
            return dict(entries)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # a broken one is as good as none
    return {}
