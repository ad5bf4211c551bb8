"""The outputs of a run on this computer: the folder, its index, and partial files."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuinfra.remote.folder import own_name
from gpuinfra.runner.outputs.folder import OutputsFolder
from gpuinfra.runner.outputs.index import OutputsIndex

INDEX_FILE, PARTS_FOLDER = "outputs-index", "outputs-partial"


class Store:
    """The folder of outputs, with the index and the partial files next to it."""

    def __init__(self, into: Path) -> None:
        self.parts = into.parent / PARTS_FOLDER
        self.parts.mkdir(parents=True, exist_ok=True)
        self.index = OutputsIndex(into.parent / INDEX_FILE)
        self.folder = OutputsFolder(into)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.folder.close()
        self.index.close()
        with contextlib.suppress(OSError):
            self.parts.rmdir()  # fails unless it is empty

    def known(self) -> Iterator[list[Any]]:
        """Yield fetched files that are unchanged here. Others are removed from the index, to be fetched again."""
        for path, (stamp, content) in list(self.index.files.items()):
            if self.folder.stamp(own_name(path)) == (stamp.size, stamp.mtime):
                yield [path, *stamp, content]
            else:
                del self.index.files[path]

    def parts_known(self) -> Iterator[list[Any]]:
        """Yield how much of each partial file is here, and remove other files."""
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
        """Return the path of a file while it is incomplete."""
        return self.parts / hashlib.blake2b(path.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
