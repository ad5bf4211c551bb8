"""Removes folders, however deep they are."""

from __future__ import annotations

import contextlib
import os
import stat

INTO = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PREFIX = ".removed-"


def remove_tree(top: str) -> None:
    """Remove a folder and all that is in it; what this user may not remove stays. Absent is done.

    Folders are moved up to the top one before they are emptied: so neither the length of a path nor the number of open
    files limits the depth.
    """
    try:
        number = os.open(top, INTO)
    except OSError:
        return
    try:
        count = _empty(number, number, 0)
        done: set[str] = set()
        while True:
            waiting = [name for name in os.listdir(number) if name.startswith(PREFIX) and name not in done]
            if not waiting:
                break
            for name in waiting:
                done.add(name)
                count = _remove(number, name, count)
    finally:
        os.close(number)
    with contextlib.suppress(OSError):
        os.rmdir(top)


def _remove(top: int, name: str, count: int) -> int:
    with contextlib.suppress(OSError):
        inner = os.open(name, INTO, dir_fd=top)
        try:
            count = _empty(top, inner, count)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=top)
    return count


def _empty(top: int, folder: int, count: int) -> int:
    """Remove the files of a folder, and move its folders to the top one, under numbers from this one on."""
    with contextlib.suppress(OSError):
        os.fchmod(folder, 0o700)  # a job may have closed it
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=folder)
                continue
            os.chmod(name, 0o700, dir_fd=folder)  # to enter it, and to move it
            if folder != top or not name.startswith(PREFIX):
                count = _free(top, count)
                os.rename(name, f"{PREFIX}{count}", src_dir_fd=folder, dst_dir_fd=top)
    return count


def _free(top: int, count: int) -> int:
    """The next number whose name nothing has."""
    while True:
        count += 1
        try:
            os.stat(f"{PREFIX}{count}", dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return count
