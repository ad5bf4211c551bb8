"""The record of an active run: its id, its git commit, and its changes in the history."""

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

from gpuinfra.models.run import Run
from gpuinfra.programs import GitError, Repository, open_repository
from gpuinfra.store import History

MAX_WARNINGS = 100


class Record:
    """The current state of a run, saved to the history. Thread-safe."""

    def __init__(self, run: Run, folder: Path, history: History | None) -> None:
        """Without a history (`TrackedRun: false`), nothing is saved but the log and the outputs in `folder`."""
        self._run, self._history = run, history
        self._lock = threading.RLock()
        self._unsaved: dict[str, Any] = {}
        self.folder = folder
        """The folder of the log and the outputs."""

    @property
    def run(self) -> Run:
        with self._lock:
            return self._run

    def begin(self) -> None:
        """Save the run for the first time."""
        if self._history:
            self._history.save(self.run)

    def change(self, **fields: Any) -> Run:
        """Change fields, save them, and return the run with the changes that other processes have saved."""
        with self._lock:
            self.note(**fields)
            if self._history:
                timings = self._run.timings
                self._run = self._history.update(self._run.id, **{**self._unsaved, "timings": timings})
            self._unsaved = {}
            return self._run

    def note(self, **fields: Any) -> None:
        """Change fields without saving them; the next `change` saves them."""
        with self._lock:
            self._unsaved |= fields
            self._run = replace(self._run, **fields)

    def refresh(self) -> Run:
        """Return the run with the changes that other processes have saved."""
        with self._lock:
            if self._history:
                self._run = replace(self._history.find(self._run.id), timings=self._run.timings, **self._unsaved)
            return self._run

    def warn(self, text: str) -> None:
        """Add a warning, unless the run has it or has too many."""
        with self._lock:
            known = self._run.warnings
            if text in known or len(known) > MAX_WARNINGS:
                return
            if len(known) == MAX_WARNINGS:
                text = f"more than {MAX_WARNINGS} warnings: the others are not recorded"
            self.note(warnings=(*known, text))

    def note_time(self, name: str, seconds: float) -> None:
        """Set the duration of a phase that ran elsewhere, such as in another thread."""
        with self._lock:
            self._run = replace(self._run, timings={**self._run.timings, name: round(seconds, 3)})

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the duration of the block to the phase, even if the block fails."""
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
    """Return an id such as `20261116-121530-3f9c`: the time in UTC and four random digits."""
    return f"{now.astimezone(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"


GIT_SECONDS = 10.0
# Without `dirty`, git would start another git in each submodule, with that submodule's settings.
GIT_STATUS = ("status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=dirty", "--", ".")


@dataclass(frozen=True, slots=True)
class Commit:
    """A git commit, and whether the files differ from it (None if unknown)."""

    id: str
    dirty: bool | None


def commit_of(project: Path) -> Commit | None:
    """Return the commit of the project's folder; None if it is not in a repository or git is not installed."""
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
