"""Identify the git repository that contains a spec."""

from __future__ import annotations

from pathlib import Path

from gpuinfra.git import GitError, ShallowCloneError, open_repository


def repository_of(file: Path) -> tuple[str, str]:
    """Return the ID of the git repository that contains the spec, and a note if a shallow clone hides the ID."""
    if not file.is_file():
        return "", ""
    try:
        with open_repository(file.parent) as repository:
            return repository.identify(), ""
    except ShallowCloneError as error:
        return "", f"`reap --specs` cannot know which repository the spec is from: {error}"
    except GitError:
        return "", ""
