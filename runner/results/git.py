"""Which commit a project is at, as far as git tells."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

SECONDS = 10.0
# No program that the project's own settings name is run, and nothing is written.
GIT = ("git", "--no-optional-locks", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit, and whether the files differ from it."""

    id: str
    dirty: bool | None


def commit_of(project: Path) -> Commit | None:
    """The commit of the project's folder; None where git knows none, or is not there."""
    head = _ask(project, "rev-parse", "HEAD")
    if not head:
        return None
    changes = _ask(project, "status", "--porcelain", "--untracked-files=normal", "--", ".")
    return Commit(head.strip(), None if changes is None else bool(changes.strip()))


def _ask(project: Path, *words: str) -> str | None:
    # A folder below another's repository is that one's business only where git itself says so.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(  # noqa: S603 git itself, with words of ours
            [*GIT, *words], cwd=project, env=environment, capture_output=True, timeout=SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else None
