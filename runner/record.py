"""A run while it happens: its id, its commit, and every step in the history."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuinfra.git import GitError, Repository, open_repository
from gpuinfra.models.run import Run
from gpuinfra.store.history import History

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
        """Change fields here; they are saved with the next `change`."""
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
        """Add a warning to the run."""
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


def new_run_id(now: datetime) -> str:
    """`20261116-121530-3f9c`: the moment in UTC, and a few random digits."""
    return f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


GIT_SECONDS = 10.0
# `dirty`: git would start another git in a submodule, with the submodule's own settings.
GIT_STATUS = ("status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=dirty", "--", ".")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit, and whether the files differ from it."""

    id: str
    dirty: bool | None


def commit_of(project: Path) -> Commit | None:
    """Return the commit of the project's folder; None where git knows none, or is not there."""
    try:
        with open_repository(project) as repository:
            return Commit(repository.head, _is_dirty(repository))
    except (GitError, OSError):
        return None


def _is_dirty(repository: Repository) -> bool | None:
    try:
        return bool(repository.ask(*GIT_STATUS, seconds=GIT_SECONDS).strip())
    except GitError:
        return None
