"""What ignore files left out of an upload: how much it is, and the files that a job then misses."""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from gpuinfra.runner.ignore import Ignored
from gpuinfra.runner.progress import counted

# Counting ends after this time, or this many files, and the result is a lower limit.
MEASURE_SECONDS, MAX_FILES = 0.1, 10_000
UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
# A job names a missing file near the end of its output.
TAIL_BYTES = 256 << 10
MAX_LINE = 4000
MISSING_TEXT = "No such file or directory"
MISSING = (
    re.compile(rf"{MISSING_TEXT}[^'\"]{{0,40}}(?P<quote>['\"])(?P<path>(?:(?!(?P=quote)).){{1,1000}})(?P=quote)"),
    re.compile(rf"(?P<path>[^\s:;'\"]{{1,1000}})['\"]?[:;] {MISSING_TEXT}"),
)
IN_COPY = re.compile(r"/project/|/.*/\.gpuinfra/projects/[^/]+/slot-[0-9]+/tree/")
NO_INPUT = re.compile(rb"^EOFError: EOF when reading a line", re.MULTILINE)


def describe(root: Path, ignored: Sequence[Ignored]) -> str:
    """Return in one line what ignore files left out, the largest first; an empty text if that has no content."""
    sizes, counts, is_whole = _measure(os.fsencode(root), ignored)
    order = sorted(range(len(ignored)), key=lambda each: -sizes[each])
    if not order or not any(counts):
        return ""
    least = "" if is_whole else "at least "
    first = ignored[order[0]]
    files = f", {counted(counts[order[0]], 'file')}" if first.is_folder else ""
    text = f"not sent: {first.shown}, {least}{_size(sizes[order[0]])}{files}: {first.line}"
    rest = order[1:]
    if not rest:
        return text
    return f"{text}; {len(rest):,} more, {least}{_size(sum(sizes[each] for each in rest))}"


def _measure(root: bytes, ignored: Sequence[Ignored]) -> tuple[list[int], list[int], bool]:
    """Return the size and number of files of each path, and whether all were counted."""
    sizes, counts = [0] * len(ignored), [0] * len(ignored)
    folders: deque[tuple[int, bytes]] = deque()
    for number, each in enumerate(ignored):
        path = b"%s/%s" % (root, each.path.encode("utf-8", "surrogateescape"))
        if each.is_folder:
            folders.append((number, path))
        else:
            counts[number] = 1
            sizes[number] = _file_size(path)
    ends, files = time.monotonic() + MEASURE_SECONDS, 0
    # All top folders before the folders in them: large files are rarely far down.
    while folders:
        if files > MAX_FILES or time.monotonic() > ends:
            return sizes, counts, False
        number, folder = folders.popleft()
        try:
            with os.scandir(folder) as found:
                for child in found:
                    if child.is_dir(follow_symlinks=False):
                        folders.append((number, child.path))
                    else:
                        files += 1
                        counts[number] += 1
                        sizes[number] += child.stat(follow_symlinks=False).st_size
        except OSError:
            continue  # it was removed, or cannot be read: it is not sent anyway
    return sizes, counts, True


def _file_size(path: bytes) -> int:
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


def _size(count: int) -> str:
    unit = next((each for each in UNITS if count >= each[0]), None)
    return f"{count / unit[0]:.1f} {unit[1]}" if unit else f"{count} B"


def tail(log: Path) -> bytes:
    """Return the end of a job's log, or nothing if it cannot be read."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
            return file.read()
    except OSError:
        return b""


def missing_paths(output: bytes) -> list[str]:
    """Return the paths in the project that a job's output says do not exist, without those that lead elsewhere."""
    found = []
    lines = [line for line in output.decode("utf-8", "replace").splitlines() if MISSING_TEXT in line]
    for pattern in MISSING:
        for match in (each for line in lines for each in pattern.finditer(line[-MAX_LINE:])):
            path = os.path.normpath(IN_COPY.sub("", match["path"], count=1))
            if not path.startswith(("/", "../")) and path not in {".", ".."}:
                found.append(path)
    return list(dict.fromkeys(found))


def wanted_input(output: bytes) -> bool:
    """Return whether a job ended because it read standard input."""
    return NO_INPUT.search(output) is not None
