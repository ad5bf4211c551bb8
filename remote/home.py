"""Where everything is kept on this machine, and how it is removed."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import stat
from collections.abc import Callable
from typing import Any

from gpuinfra.remote.run_folder import ROOT, RUNS
from gpuinfra.remote.wire import RefusedError, Wire


def root() -> str:
    """`~/.gpuinfra`, made where it is missing, for its owner alone."""
    folder = os.path.join(os.path.expanduser("~"), ROOT)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def named(*parts: str) -> str:
    """A path below the root. No part may lead elsewhere: they come from the client."""
    for part in parts:
        if not part or part in {".", ".."} or "/" in part or "\0" in part:
            raise RefusedError("protocol", f"not a name: {part!r}")
    return os.path.join(root(), *parts)


def run_folder(run: str) -> str:
    """What is kept of one run: `outputs/`, and of a job without a container its log and state."""
    return named(RUNS, run)


def hello(wire: Wire, request: dict[str, Any]) -> None:
    """Who and what this machine is."""
    folder = root()
    wire.send_json(
        {
            "python": platform.python_version(),
            "system": platform.system(),
            "home": os.path.expanduser("~"),
            "root": folder,
            "user": os.getuid(),
            "group": os.getgid(),
            "free": shutil.disk_usage(folder).free,
        }
    )


def folder(wire: Wire, request: dict[str, Any]) -> None:
    """The folder that all jobs share, made where it is missing, by its path without links. With `below`, no link leads
    out of that folder."""
    path = os.path.realpath(os.path.expanduser(request["path"]))
    if request.get("below"):
        base = os.path.realpath(os.path.expanduser(request["below"]))
        if os.path.commonpath([base, path]) != base:
            raise RefusedError("leads-out", f"{request['path']} leads out of {base}")
    os.makedirs(path, exist_ok=True)
    if os.path.realpath(path) != path:  # a job that runs now can put a link there
        raise RefusedError("leads-out", f"{path} leads out of its folder by a link that was made just now")
    wire.send_json({"path": path})


VERBS: dict[str, Callable[..., None]] = {"hello": hello, "folder": folder}


OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
REMOVED = ".removed-"


def remove_tree(top: str) -> None:
    """Remove a folder and all that is in it; what this user may not remove stays. Absent is done.

    Folders are moved up to the top one before they are emptied: so neither the length of a path nor the number of open
    files limits the depth.
    """
    try:
        number = os.open(top, OPEN_FOLDER)
    except OSError:
        return
    try:
        count = _empty(number, number, 0)
        done: set[str] = set()
        while True:
            waiting = [name for name in os.listdir(number) if name.startswith(REMOVED) and name not in done]
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
        inner = os.open(name, OPEN_FOLDER, dir_fd=top)
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
            if folder != top or not name.startswith(REMOVED):
                count = _next_number(top, count)
                os.rename(name, f"{REMOVED}{count}", src_dir_fd=folder, dst_dir_fd=top)
    return count


def _next_number(top: int, count: int) -> int:
    """The next number whose name nothing has."""
    while True:
        count += 1
        try:
            os.stat(f"{REMOVED}{count}", dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return count
