"""Write the log of a job: read what it prints from pipes, and append it as frames."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import time

FRAME_HEADER = struct.Struct("!BQI")
STDOUT, STDERR = 1, 2
LOG_GAP = b"\n[gpuinfra: %d bytes of the job's output are missing here: they could not be written]\n"


class JobLog:
    """The log file. Output that cannot be written is counted, and a line in the log reports it as soon as possible."""

    def __init__(self, file: str) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._rest = b""
        self._last = 0
        self._gap = 0
        self.missing = 0
        """Bytes of output that are missing from the log."""

    def add(self, stream: int, data: bytes) -> None:
        """Write output as a frame."""
        if self._finish_frame() and (not self._gap or self._write(STDERR, LOG_GAP % self._gap)):
            self._gap = 0
            if self._write(stream, data):
                return
        self._gap += len(data)
        self.missing += len(data)

    def end(self) -> None:
        """Report missing output for the last time."""
        if self._finish_frame() and self._gap:
            self._write(STDERR, LOG_GAP % self._gap)
        if not self._finish_frame():
            self.missing += len(self._rest)

    def _finish_frame(self) -> bool:
        """Write the rest of the last frame, which clients may have begun to read. Return whether it is complete."""
        while self._rest:
            try:
                self._rest = self._rest[os.write(self._file, self._rest) :]
            except OSError:
                return False
        return True

    def _write(self, stream: int, data: bytes) -> bool:
        self._last = max(self._last, time.time_ns())
        frame = FRAME_HEADER.pack(stream, self._last, len(data)) + data
        try:
            self._rest = frame[os.write(self._file, frame) :]
        except OSError:
            return False
        self._finish_frame()
        return True


CHUNK = 1 << 18
PIPE_SIZE = 1 << 20
F_SETPIPE_SZ = 1031
# After this many reads with almost no pause between them, output is collected for a while: each read is a frame.
QUICK_SECONDS, QUICK_READS = 0.002, 4
COLLECT_SECONDS = 0.01


class PipeReader:
    """Reads what a program prints: at once after a pause, and in blocks while it prints without one."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._read_at, self._quick_reads = 0.0, 0
        with contextlib.suppress(OSError):  # there is a limit for all pipes of a user
            fcntl.fcntl(number, F_SETPIPE_SZ, PIPE_SIZE)

    def read(self) -> bytes:
        """Return the available output, or no bytes at its end. Wait if there is none."""
        is_quick = time.monotonic() - self._read_at < QUICK_SECONDS
        self._quick_reads = self._quick_reads + 1 if is_quick else 0
        if self._quick_reads >= QUICK_READS:
            time.sleep(COLLECT_SECONDS)
        data = os.read(self._number, CHUNK)
        self._read_at = time.monotonic()
        return data
