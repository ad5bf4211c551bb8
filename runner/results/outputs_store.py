"""What is on this computer of a run's outputs."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuinfra.remote.outputs_folder import own_name
from gpuinfra.runner.results.outputs_folder import OutputsFolder
from gpuinfra.runner.results.outputs_index import OutputsIndex

INDEX, PARTS = "outputs-index", "outputs-partial"


class Store:
    """The folder, the index beside it, and files that are not whole."""

    def __init__(self, into: Path) -> None:
        self.parts = into.parent / PARTS
        self.parts.mkdir(parents=True, exist_ok=True)
        self.index = OutputsIndex(into.parent / INDEX)
        self.folder = OutputsFolder(into)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.__exit__(None, None, None)
        self.index.close()
        with contextlib.suppress(OSError):
            self.parts.rmdir()  # where nothing is in it

    def known(self) -> Iterator[list[Any]]:
        """Files that are here as they were fetched. Those that somebody changed or removed here are forgotten."""
        for path, (stamp, content) in list(self.index.files.items()):
            if self.folder.stamp(own_name(path)) == (stamp.size, stamp.mtime):
                yield [path, *stamp, content]
            else:
                del self.index.files[path]

    def parts_known(self) -> Iterator[list[Any]]:
        """How much of large files is here. What else is left of earlier times is removed."""
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
        """Where a file is kept until it is whole."""
        return self.parts / hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
