"""Read JSON files, replace files atomically, and lock them."""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any


def read_object(path: str) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if it is missing or invalid."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def replace(path: str, text: str) -> None:
    """Write a file so that a reader sees the old or the new content, never a part."""
    new = f"{path}.new"
    with open(new, "w") as file:
        file.write(text)
    os.replace(new, path)


def try_lock(file: int, *, shared: bool = False) -> bool:
    """Lock an open file, and return whether that succeeded. Closing the file releases the lock."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True
