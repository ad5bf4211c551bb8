"""What every step of a change in Azure needs, such as the journal, which records each action before it happens."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Ref
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.errors import CloudError
from gpuinfra.provision.market import Market
from gpuinfra.provision.waiting import Deadline, Progress, retry, wait_until
from gpuinfra.workspace import make_state_folder

FILE = "journal.jsonl"


class Journal:
    """A log in the workspace's state folder, one line per event. Azure has the state; no decision uses this log."""

    def __init__(
        self,
        folder: Path | None,
        machine: str,
        correlation_id: str,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._folder, self._machine, self._correlation_id, self._now = folder, machine, correlation_id, now
        self._lock = threading.Lock()

    def intend(self, doing: str, ref: Ref) -> None:
        """Record that an action is about to start."""
        self._write("intent", doing, ref)

    def did(self, doing: str, ref: Ref) -> None:
        """Record that an action succeeded."""
        self._write("done", doing, ref)

    def failed(self, doing: str, ref: Ref, code: str) -> None:
        """Record that Azure refused an action."""
        self._write("failed", doing, ref, code=code)

    def _write(self, event: str, doing: str, ref: Ref, **more: str) -> None:
        if self._folder is None:
            return
        entry = {
            "time": stamp(self._now()),
            "machine": self._machine,
            "event": event,
            "doing": doing,
            "kind": ref.kind.value,
            "group": ref.group,
            "name": ref.name,
            "correlationId": self._correlation_id,
            **more,
        }
        # A full disk must not prevent a teardown.
        with self._lock, contextlib.suppress(OSError):
            file = make_state_folder(self._folder) / FILE
            with file.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(entry) + "\n")


Result = TypeVar("Result")


@dataclass(frozen=True)
class Task:
    """The change of one machine: the cloud, where steps are reported and recorded, and until when they may take."""

    cloud: Cloud
    market: Market
    progress: Progress
    journal: Journal
    deadline: Deadline

    def within(self, seconds: float) -> Task:
        """Return this task with a deadline at most `seconds` from now."""
        return replace(self, deadline=self.deadline.within(seconds))

    @contextmanager
    def step(self, ref: Ref, doing: str, done: str) -> Iterator[None]:
        """Report and record the steps in this block, and their failure. `doing` and `done` are as in Progress."""
        self.progress.begin(str(ref), doing)
        self.journal.intend(doing, ref)
        try:
            yield
        except CloudError as error:
            self.progress.fail(str(ref), error.code)
            self.journal.failed(doing, ref, error.code)
            raise
        self.progress.end(str(ref), done)
        self.journal.did(doing, ref)

    def retry(self, attempt: Callable[[], Result], unreachable_seconds: float) -> Result:
        """Return the result of `attempt`, which is retried until the deadline: see `retry`."""
        return retry(attempt, self.deadline, self.cloud.interrupt.sleep, unreachable_seconds=unreachable_seconds)

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        """Return whether the condition became true before the deadline."""
        return wait_until(condition, self.deadline, self.cloud.interrupt.sleep)

    def wait_until_settled(self, ref: Ref) -> bool:
        """Return whether no operation on the resource is in progress, or it is gone, before the deadline."""

        def is_settled() -> bool:
            found = self.cloud.look(ref)
            return found is None or found.is_settled

        return self.wait_until(is_settled)
