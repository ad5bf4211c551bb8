"""Folders in the project with copies of outputs, which uploads leave out."""

from __future__ import annotations

import os
from pathlib import Path

COPIES_FILE = "copied-outputs"


def copied_folders(state: Path | None) -> frozenset[str]:
    """Return the folders with copies of outputs, as paths in the project."""
    try:
        return frozenset(_text(state / COPIES_FILE).splitlines()) if state else frozenset()
    except OSError:
        return frozenset()


def leave_out_of_uploads(state: Path, project: Path, folder: Path) -> bool | None:
    """Let uploads leave out a folder to which outputs will be copied.

    Return None if it is not in the project, and False if it contains other files, which belong to the project.
    """
    inside = Path(os.path.realpath(folder))
    root = Path(os.path.realpath(project))
    if not inside.is_relative_to(root):
        return None
    path = inside.relative_to(root).as_posix()
    known = copied_folders(state)
    if path in known:
        return True
    if (inside.is_dir() and any(inside.iterdir())) or "\n" in path:
        return False
    (state / COPIES_FILE).write_text(
        "".join(f"{each}\n" for each in sorted({*known, path})), "utf-8", "surrogateescape"
    )
    return True


def _text(file: Path) -> str:
    return file.read_text("utf-8", "surrogateescape")
