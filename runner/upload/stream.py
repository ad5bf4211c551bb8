"""The stream: the contents of files, one after the other, in parts that are compressed where it pays."""

from __future__ import annotations

import time
from collections.abc import Callable

from gpuinfra.runner.machine.remote_client import Call
from gpuinfra.runner.upload.compression import Squeeze
from gpuinfra.runner.upload.content import fill, opened
from gpuinfra.runner.upload.tree import Entry

PART = 256 << 10
# What the first byte of a part says of the others.
AS_IT_IS, COMPRESSED = b"\0", b"\1"


class Stream:
    """What is added goes out as soon as a part is full. Nothing in it says where a file ends: both sides know that."""

    def __init__(self, call: Call, squeeze: Squeeze, told: Callable[[int], None]) -> None:
        self._call, self._squeeze, self._told = call, squeeze, told
        self._buffer = memoryview(bytearray(AS_IT_IS + bytes(PART)))
        self._end = 1
        self._done = 0

    def add(self, data: memoryview) -> None:
        """A content, or the rest of it, that is at hand."""
        while data:
            room = self._room(len(data))
            room[:] = data[: len(room)]
            data = data[len(room) :]
            self._end += len(room)

    def add_file(self, root: bytes, entry: Entry, offset: int) -> None:
        """The content of a file from there on."""
        with opened(root, entry.path) as handle:
            while offset < entry.size:
                room = self._room(entry.size - offset)
                fill(handle, room, offset)
                offset += len(room)
                self._end += len(room)

    def flush(self) -> None:
        """What was added is on its way then."""
        part = self._buffer[1 : self._end]
        if not part:
            return
        small = self._squeeze.compress(part)
        message = self._buffer[: self._end] if small is None else COMPRESSED + small
        began = time.perf_counter()
        self._call.send(message)
        self._squeeze.sent(len(message), time.perf_counter() - began)
        self._done += len(part)
        self._told(self._done)
        self._end = 1

    def _room(self, most: int) -> memoryview:
        if self._end == len(self._buffer):
            self.flush()
        return self._buffer[self._end : self._end + most]
