"""The end of what a command says on standard error."""

from __future__ import annotations

import threading

MOST = 1 << 14


class Tail:
    """Keeps the last of what is added; from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        """More of it."""
        with self._lock:
            self._kept += data
            del self._kept[:-MOST]

    @property
    def text(self) -> str:
        """What is kept."""
        with self._lock:
            return self._kept.decode("utf-8", "replace")
