"""A project as it is sent."""

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
# Entries per message.
BATCH = 5000


class Entry(NamedTuple):
    """A file, folder or link in the project, in the form in which it is sent."""

    path: str
    """Relative to the project. Names that are not UTF-8 have surrogates."""
    kind: str
    """FILE, FOLDER or LINK."""
    mode: int
    """Permissions, at most 0o777."""
    size: int
    content: str
    """The digest of a file, or the target of a link."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A path that is not sent, although no ignore file names it."""

    path: str
    reason: str


@dataclass(frozen=True)
class Tree:
    """The entries of a project, folders before their content, and what is not sent."""

    root: Path
    entries: tuple[Entry, ...]
    skipped: tuple[Skipped, ...] = ()
    held_back: tuple[str, ...] = ()
    """Files and folders that are not sent because they may hold credentials."""
    included: tuple[str, ...] = ()
    """Files and folders that usually hold credentials, but are sent because the ignore file includes them."""
    ignore_file: str = ""
    copied: tuple[str, ...] = ()
    """Folders with copies of outputs, which are not sent."""
    unignored: tuple[str, ...] = ()
    """Paths that are sent although `.gitignore` names them, because another ignore file is used."""
    pool: dict[str, bytes] = field(default_factory=dict, repr=False, compare=False)
    """The content of small files that were read for their digest, by digest."""

    @cached_property
    def files(self) -> int:
        """Return the number of files."""
        return sum(entry.kind == FILE for entry in self.entries)

    @cached_property
    def size(self) -> int:
        """Return the size of all files in bytes."""
        return sum(entry.size for entry in self.entries)

    @cached_property
    def digest(self) -> str:
        """Return the digest of all entries. It is the same for the same project on every computer."""
        whole = hashlib.sha256()
        for batch in self.batches:
            whole.update(batch)
        return whole.hexdigest()[:32]

    @cached_property
    def batches(self) -> tuple[bytes, ...]:
        """Return all entries, encoded for the target."""
        return tuple(self._batches())

    def includes(self, path: str) -> bool:
        """Return whether a path in the project is sent."""
        return posixpath.normpath(path) in self._paths

    def replacing(self, entry: Entry) -> Tree:
        """Return this tree with a new entry for a path."""
        return replace(self, entries=tuple(entry if each.path == entry.path else each for each in self.entries))

    def without(self, path: str) -> Tree:
        """Return this tree without a path."""
        return replace(self, entries=tuple(each for each in self.entries if each.path != path))

    @cached_property
    def _paths(self) -> frozenset[str]:
        return frozenset(entry.path for entry in self.entries)

    def _batches(self) -> Iterator[bytes]:
        for start in range(0, len(self.entries), BATCH):
            yield json.dumps(self.entries[start : start + BATCH], separators=(",", ":")).encode()
