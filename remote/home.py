"""The folder `~/.gpuinfra` on this machine: its paths, files that several programs write, and removing trees."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import shutil
import stat
from typing import Any

from gpuinfra.remote.run_folder import ROOT, RUNS
from gpuinfra.remote.wire import RefusedError, Wire


def root() -> str:
    """Return the path of `~/.gpuinfra`. Create it if it is missing, accessible to its owner only."""
    folder = os.path.join(os.path.expanduser("~"), ROOT)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def named(*parts: str) -> str:
    """Return a path below the root. Parts come from the client; refuse one that leads elsewhere."""
    for part in parts:
        if not part or part in {".", ".."} or "/" in part or "\0" in part:
            raise RefusedError("protocol", f"invalid name: {part!r}")
    return os.path.join(root(), *parts)


def run_folder(run: str) -> str:
    """Return the path of a run's folder."""
    return named(RUNS, run)


def hello(wire: Wire, request: dict[str, Any]) -> None:
    """Send what the client needs to know about this machine and its user."""
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
    """Create the folder that jobs share, and send its path without links. With `below`, it must be in that folder."""
    path = os.path.realpath(os.path.expanduser(request["path"]))
    if request.get("below"):
        base = os.path.realpath(os.path.expanduser(request["below"]))
        if os.path.commonpath([base, path]) != base:
            raise RefusedError("leads-out", f"{request['path']} is outside {base}")
    os.makedirs(path, exist_ok=True)
    if os.path.realpath(path) != path:  # a running job can put a link there at any time
        raise RefusedError("leads-out", f"a new link in {path} leads out of its folder")
    wire.send_json({"path": path})


OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
REMOVED = ".removed-"


def remove_tree(top: str) -> None:
    """Remove a folder with its content, except what this user cannot remove. An absent folder is not an error.

    Inner folders are moved to the top before they are emptied, so neither path length nor open files limit the depth.
    """
    try:
        number = os.open(top, OPEN_FOLDER)
    except OSError:
        return
    try:
        count = _empty(number, number, 0)
        done: set[str] = set()
        while True:
            moved = [name for name in os.listdir(number) if name.startswith(REMOVED) and name not in done]
            if not moved:
                break
            for name in moved:
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
    """Remove the files in a folder, move its folders to the top under numbered names, and return the last number."""
    with contextlib.suppress(OSError):
        os.fchmod(folder, 0o700)  # a job may have made it inaccessible
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                os.unlink(name, dir_fd=folder)
                continue
            os.chmod(name, 0o700, dir_fd=folder)  # needed to enter and to move it
            if folder != top or not name.startswith(REMOVED):
                count = _next_number(top, count)
                os.rename(name, f"{REMOVED}{count}", src_dir_fd=folder, dst_dir_fd=top)
    return count


def _next_number(top: int, count: int) -> int:
    """Return the next number whose name is unused."""
    while True:
        count += 1
        try:
            os.stat(f"{REMOVED}{count}", dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            return count


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
