"""A run while it happens, and every step of it in the history."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuinfra.models.run import Run
from gpuinfra.runner.results.history import History

MOST_WARNINGS = 100


class Record:
    """The run as it is now. Changes may come from several threads."""

    def __init__(self, run: Run, folder: Path, history: History | None) -> None:
        """Without a history nothing is kept of it but its outputs: `TrackedRun: false`."""
        self._run, self._history = run, history
        self._lock = threading.RLock()
        self._unsaved: dict[str, Any] = {}
        self.folder = folder
        """Where its log and its outputs are."""

    @property
    def run(self) -> Run:
        """As it is now."""
        with self._lock:
            return self._run

    @property
    def is_tracked(self) -> bool:
        """Whether it is remembered."""
        return self._history is not None

    def begin(self) -> None:
        """From now on it is remembered."""
        if self._history:
            self._history.save(self.run)

    def change(self, **fields: Any) -> Run:
        """Something is known of it that was not. What other programs changed meanwhile stays, and is known here too."""
        with self._lock:
            self.note(**fields)
            if self._history:
                timings = self._run.timings
                self._run = self._history.update(self._run.id, **{**self._unsaved, "timings": timings})
            self._unsaved = {}
            return self._run

    def note(self, **fields: Any) -> None:
        """The same, but nobody else needs to know yet: it is remembered with the next change."""
        with self._lock:
            self._unsaved |= fields
            self._run = replace(self._run, **fields)

    def refresh(self) -> Run:
        """What other programs have changed meanwhile is known here too."""
        with self._lock:
            if self._history:
                self._run = replace(self._history.find(self._run.id), timings=self._run.timings, **self._unsaved)
            return self._run

    def warn(self, text: str) -> None:
        """Something that whoever reads of it should know."""
        with self._lock:
            known = self._run.warnings
            if text in known or len(known) > MOST_WARNINGS:
                return
            text = text if len(known) < MOST_WARNINGS else f"more than {MOST_WARNINGS} warnings: the rest is left out"
            self.note(warnings=(*known, text))

    def note_time(self, name: str, seconds: float) -> None:
        """How long something took that was not waited for here from its beginning to its end."""
        with self._lock:
            self._run = replace(self._run, timings={**self._run.timings, name: round(seconds, 3)})

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """How long it takes is remembered, whatever comes of it."""
        began = time.monotonic()
        with self._lock:
            self._run = replace(self._run, timings={**self._run.timings, name: 0.0})
        try:
            yield
        finally:
            with self._lock:
                before = self._run.timings.get(name, 0.0)
                timings = {**self._run.timings, name: round(before + time.monotonic() - began, 3)}
                self._run = replace(self._run, timings=timings)
