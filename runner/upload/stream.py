"""The stream of file content in an upload."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuinfra.runner.connection.remote_client import Call
from gpuinfra.runner.upload.compression import Compressor
from gpuinfra.runner.upload.content import fill, opened
from gpuinfra.runner.upload.tree import Entry

PART = 256 << 10
# The first byte of a part: how the rest is encoded.
UNCOMPRESSED, COMPRESSED = b"\0", b"\1"


class ContentStream:
    """Sends content in parts of equal size. It has no file boundaries, because both sides know the sizes."""

    def __init__(self, call: Call, compressor: Compressor, report: Callable[[int], None]) -> None:
        self._call, self._compressor, self._report = call, compressor, report
        self._buffer = memoryview(bytearray(UNCOMPRESSED + bytes(PART)))
        self._end = 1
        self._done = 0

    def add(self, data: memoryview) -> None:
        """Add content that is in memory."""
        while data:
            room = self._room(len(data))
            room[:] = data[: len(room)]
            data = data[len(room) :]
            self._end += len(room)

    def add_file(self, root: bytes, entry: Entry, offset: int) -> None:
        """Add the content of a file from this offset."""
        with opened(root, entry.path) as handle:
            while offset < entry.size:
                room = self._room(entry.size - offset)
                fill(handle, room, offset)
                offset += len(room)
                self._end += len(room)

    def flush(self) -> None:
        """Send the content that was added."""
        part = self._buffer[1 : self._end]
        if not part:
            return
        small = self._compressor.compress(part)
        message = self._buffer[: self._end] if small is None else COMPRESSED + small
        began = time.perf_counter()
        self._call.send(message)
        self._compressor.note_sent(len(message), time.perf_counter() - began)
        self._done += len(part)
        self._report(self._done)
        self._end = 1

    def _room(self, limit: int) -> memoryview:
        if self._end == len(self._buffer):
            self.flush()
        return self._buffer[self._end : self._end + limit]
