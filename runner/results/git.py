"""Which commit a project is at, as far as git tells."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from gpuinfra.git import GitError, Repository, open_repository

SECONDS = 10.0
# `dirty`: git would start another git in a submodule, with the submodule's own settings.
STATUS = ("status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=dirty", "--", ".")


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
        return bool(repository.ask(*STATUS, seconds=SECONDS).strip())
    except GitError:
        return None
