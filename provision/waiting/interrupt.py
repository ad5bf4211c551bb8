"""Ctrl-C: set once, and every wait gives up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gpuinfra.provision.errors import CloudError, Fault


class Interrupt:
    """Whether the user has had enough."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._working: set[int] = set()
        self._abandoned: set[int] = set()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """For a thread that works beside the main one: it is not to go on unseen when that has left."""
        own = threading.get_ident()
        self._working.add(own)
        try:
            yield
        finally:
            self._working.discard(own)
            self._abandoned.discard(own)

    def set(self) -> None:
        """Have every wait give up."""
        self._event.set()

    def clear(self) -> None:
        """Waits are waited for again: to look at what is left. Whoever is at work still, and has not heard, gives up
        all the same: Python waits for every thread at its end."""
        self._abandoned |= self._working
        self._event.clear()

    def check(self, subject: str = "") -> None:
        """Raise where it is set."""
        if self._event.is_set() or threading.get_ident() in self._abandoned:
            raise CloudError(Fault.INTERRUPTED, "Interrupted", "it goes on in Azure", subject=subject)

    def sleep(self, seconds: float) -> None:
        """Wait, but not when nobody wants to any more."""
        self._event.wait(seconds)
        self.check()
