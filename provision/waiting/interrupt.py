"""Ctrl-C: set once, and every wait gives up."""

from __future__ import annotations

import threading

from provision.errors import CloudError, Fault


class Interrupt:
    """Whether the user has had enough."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Have every wait give up."""
        self._event.set()

    def clear(self) -> None:
        """Waits are waited for again: to look at what is left."""
        self._event.clear()

    def check(self, subject: str = "") -> None:
        """Raise where it is set."""
        if self._event.is_set():
            raise CloudError(Fault.INTERRUPTED, "Interrupted", "it goes on in Azure", subject=subject)

    def sleep(self, seconds: float) -> None:
        """Wait, but not when nobody wants to any more."""
        self._event.wait(seconds)
        self.check()
