"""The log of a job without a container, as it is written: `runner.jobs.log` reads the same format."""

from __future__ import annotations

import os
import struct
import time

HEADER = struct.Struct("!BQI")
STDOUT, STDERR = 1, 2
GAP = b"\n[gpuinfra: %d bytes of the job's output are missing here: they could not be written]\n"


class Log:
    """The file of frames. What cannot be written is counted, and said as soon as it can be."""

    def __init__(self, file: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._rest = b""
        self._last = 0
        self._gap = 0
        self.missing = 0
        """Bytes of output that are not in it."""

    def add(self, stream: int, data: bytes) -> None:
        """Some output, as a frame."""
        if self._is_whole() and (not self._gap or self._write(STDERR, GAP % self._gap)):
            self._gap = 0
            if self._write(stream, data):
                return
        self._gap += len(data)
        self.missing += len(data)

    def end(self) -> None:
        """The last chance to say what is missing."""
        if self._is_whole() and self._gap:
            self._write(STDERR, GAP % self._gap)
        if not self._is_whole():
            self.missing += len(self._rest)

    def _is_whole(self) -> bool:
        """Whether a frame may begin: others read already, so what has begun is gone on with and never taken back."""
        while self._rest:
            try:
                self._rest = self._rest[os.write(self._file, self._rest) :]
            except OSError:
                return False
        return True

    def _write(self, stream: int, data: bytes) -> bool:
        self._last = max(self._last, time.time_ns())
        frame = HEADER.pack(stream, self._last, len(data)) + data
        try:
            self._rest = frame[os.write(self._file, frame) :]
        except OSError:
            return False
        self._is_whole()
        return True
