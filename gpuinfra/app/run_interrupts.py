"""Bring Ctrl-C to the threads of several runs: signals reach only the main thread."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuinfra.app.job_request import OnInterrupt
    from gpuinfra.runner.link import Link


class RunInterrupts:
    """One decision after Ctrl-C for all runs of a command. In their threads, it appears as KeyboardInterrupt."""

    def __init__(self) -> None:
        from gpuinfra.provision.waiting import Interrupt  # imports pydantic, which `submit` does not need

        self.cloud = Interrupt()
        """Ends the waits for Azure while a machine comes up."""
        self.decision: OnInterrupt | None = None
        """What happens to jobs that run: to detach or to cancel; None before Ctrl-C."""
        self._links: set[Link] = set()
        self._lock = threading.Lock()

    @contextmanager
    def of(self, link: Link) -> Iterator[None]:
        """Let the decision end what uses this link, during the block or before it."""
        with self._lock:
            self._links.add(link)
            is_sent = self.decision is not None
        if is_sent:
            link.interrupt()
        try:
            yield
        finally:
            with self._lock:
                self._links.discard(link)

    def send(self, decision: OnInterrupt) -> None:
        """Interrupt all runs that have no job so far, or follow theirs. A second decision changes nothing."""
        from gpuinfra.runner.progress import in_thread

        with self._lock:
            if self.decision is not None:
                return
            self.decision = decision
            links = list(self._links)
        self.cloud.set()
        for link in links:
            in_thread(link.interrupt, "interrupt")  # closing a silent connection can take seconds


@contextmanager
def interruptible(link: Link) -> Iterator[None]:
    """Raise KeyboardInterrupt if an interrupt of the link ends the block. The link can then be used again."""
    from gpuinfra.runner.errors import ConnectError, JobError, RemoteError

    try:
        yield
    except (ConnectError, JobError, RemoteError) as error:
        if not link.is_interrupted:
            raise
        link.resume()
        raise KeyboardInterrupt from error
