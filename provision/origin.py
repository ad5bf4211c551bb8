"""Which git repository a spec comes from."""

from __future__ import annotations

from pathlib import Path

from gpuinfra.git import GitError, ShallowCloneError, open_repository


def repository_of(file: Path) -> tuple[str, str]:
    """Return the id of the git repository that a spec's file is in, and a note where a shallow clone hides the id."""
    if not file.is_file():
        return "", ""
    try:
        with open_repository(file.parent) as repository:
            return repository.identify(), ""
    except ShallowCloneError as error:
        return "", f"`reap --specs` cannot know which repository the spec is from: {error}"
    except GitError:
        return "", ""
