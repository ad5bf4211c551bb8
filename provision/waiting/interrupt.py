"""Ctrl-C: once set, every wait ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gpuinfra.provision.errors import CloudError, Fault


class Interrupt:
    """A flag that the user has interrupted the command."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._working: set[int] = set()
        self._abandoned: set[int] = set()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Mark this thread as a worker in this block, so that it does not continue after the main thread has left."""
        own = threading.get_ident()
        self._working.add(own)
        try:
            yield
        finally:
            self._working.discard(own)
            self._abandoned.discard(own)

    def set(self) -> None:
        """End every wait with Fault.INTERRUPTED."""
        self._event.set()

    def clear(self) -> None:
        """Allow waits again, to look at what is left.

        Workers that have not noticed the interrupt still stop, because Python waits for every thread at exit.
        """
        self._abandoned |= self._working
        self._event.clear()

    def check(self, subject: str = "") -> None:
        """Raise CloudError if the flag is set, or was set while this worker ran."""
        if self._event.is_set() or threading.get_ident() in self._abandoned:
            raise CloudError(Fault.INTERRUPTED, "Interrupted", "it goes on in Azure", subject=subject)

    def sleep(self, seconds: float) -> None:
        """Sleep. Raise CloudError if interrupted."""
        self._event.wait(seconds)
        self.check()
