"""A tree: the project as it is sent."""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

FILE, FOLDER, LINK = "f", "d", "l"
# So many entries are one message.
BATCH = 5000


class Entry(NamedTuple):
    """Something in the project. The target gets to know it in just this form."""

    path: str
    """Inside the project; names that are not UTF-8 have surrogates."""
    kind: str
    """FILE, FOLDER or LINK."""
    mode: int
    """Permissions, 0o777 at most."""
    size: int
    content: str
    """A file's digest; where a link leads to."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something in the project that is not sent although no ignore file says so."""

    path: str
    reason: str


@dataclass(frozen=True)
class Tree:
    """What is sent of a project, folders before what is in them."""

    root: Path
    entries: tuple[Entry, ...]
    skipped: tuple[Skipped, ...] = ()
    held_back: tuple[str, ...] = ()
    """Files and folders that may hold credentials, and so are not sent."""
    included: tuple[str, ...] = ()
    """Files and folders that usually hold credentials, and are sent because the ignore file names them."""
    ignore_file: str = ""
    copied: tuple[str, ...] = ()
    """Folders with copies of outputs, which are not sent."""
    unignored: tuple[str, ...] = ()
    """What is sent although `.gitignore` names it, because another ignore file counts."""
    pool: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    """The content, by digest, of small files that have just been read."""

    @cached_property
    def files(self) -> int:
        """How many files there are."""
        return sum(entry.kind == FILE for entry in self.entries)

    @cached_property
    def size(self) -> int:
        """The bytes in all files."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def digest(self) -> str:
        """Of everything that is sent; the same project has the same one everywhere."""
        whole = hashlib.sha256()
        for batch in self.batches:
            whole.update(batch)
        return whole.hexdigest()[:32]

    @cached_property
    def batches(self) -> tuple[bytes, ...]:
        """All entries, as they travel."""
        return tuple(self._batches())

    def includes(self, path: str) -> bool:
        """Whether a path inside the project is among what is sent."""
        return posixpath.normpath(path) in self._paths

    def having(self, entry: Entry) -> Tree:
        """With what a file has become."""
        return replace(self, entries=tuple(entry if each.path == entry.path else each for each in self.entries))

    def without(self, path: str) -> Tree:
        """Without a file that is gone."""
        return replace(self, entries=tuple(each for each in self.entries if each.path != path))

    @cached_property
    def _paths(self) -> frozenset[str]:
        return frozenset(entry.path for entry in self.entries)

    def _batches(self) -> Iterator[bytes]:
        for start in range(0, len(self.entries), BATCH):
            yield json.dumps(self.entries[start : start + BATCH], separators=(",", ":")).encode()
