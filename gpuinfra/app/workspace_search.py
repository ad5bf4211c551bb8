"""Find the workspace of the current folder, and the files that a command means in it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpuinfra.workspace import STATE

if TYPE_CHECKING:
    from gpuinfra.app.settings import Settings

TARGETS = "aml_config"
REPOSITORY = ".git"


def workspace_above(here: Path) -> Path:
    """Return the workspace that a folder is in, relative to it: itself, or the nearest folder above with a mark.

    Marks are `.gpuinfra`, `aml_config` and a spec. Without a mark, the folder itself is the workspace. The search does
    not leave a git repository, and does not reach the home folder, the root or a folder that others can write to.
    """
    try:
        here = here.resolve(strict=True)
    except OSError:  # the current folder was deleted
        return here
    found = next((folder for folder in _candidates(here) if _has_mark(folder)), here)
    return Path(os.path.relpath(found, here))


def _candidates(here: Path) -> Iterator[Path]:
    """Return the folder itself, and those above it that can be its workspace."""
    yield here
    home, folder = _home(), here
    while folder != home and not os.path.lexists(folder / REPOSITORY):
        folder = folder.parent
        if folder in {home, Path(folder.anchor)} or not _is_own(folder):
            return
        yield folder


def _home() -> Path | None:
    try:
        return Path("~").expanduser().resolve()
    except RuntimeError:  # neither HOME nor an entry for this user
        return None


def _is_own(folder: Path) -> bool:
    """Return whether only this user, or their group, can put files into a folder, such as a spec that runs a job."""
    try:
        found = folder.stat()
    except OSError:
        return False
    return found.st_uid == os.getuid() and not found.st_mode & stat.S_IWOTH


def _has_mark(folder: Path) -> bool:
    from gpuinfra.parse.source import holds_spec

    # A `.gpuinfra` of others also counts: it is refused, as in the folder itself.
    return os.path.lexists(folder / STATE) or (folder / TARGETS).is_dir() or holds_spec(folder)


def located_path(settings: Settings, given: str) -> str:
    """Return a path that was given relative to the current folder or to the workspace.

    The folder that the user chose comes first: the one of `--workspace`, else the current one.
    """
    inside = str(settings.workspace / given)
    first, second = (given, inside) if settings.is_found else (inside, given)
    return next((path for path in (first, second) if os.path.exists(path)), first)  # noqa: PTH110 any name is valid


def script_in_workspace(settings: Settings, script: str | None) -> str | None:
    """Return a script relative to the workspace, if it is in the current folder and the workspace was found above."""
    if script is None or not settings.is_found or not os.path.isfile(script):  # noqa: PTH113 any name is valid
        return script
    # A link stays the file that was named.
    return os.path.relpath(os.path.abspath(script), os.path.realpath(settings.workspace))  # noqa: PTH100
