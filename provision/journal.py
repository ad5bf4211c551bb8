"""Record each action before it happens, so that a crash can be explained."""

import contextlib
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from gpuinfra.models.json_values import stamp
from gpuinfra.models.resource import Ref
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
