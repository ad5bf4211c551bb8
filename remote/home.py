"""Where everything is kept on this machine, and small questions about it."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable
from typing import Any

from gpuinfra.remote.wire import RefusedError, Wire


def root() -> str:
    """`~/.gpuinfra`, made where it is missing, for its owner alone."""
    folder = os.path.join(os.path.expanduser("~"), ".gpuinfra")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def named(*parts: str) -> str:
    """A path below the root. No part may lead elsewhere: they come from the near side."""
    for part in parts:
        if not part or part in {".", ".."} or "/" in part or "\0" in part:
            raise RefusedError("protocol", f"not a name: {part!r}")
    return os.path.join(root(), *parts)


def run_folder(run: str) -> str:
    """What is kept of one run: `outputs/`, and of a job without a container its log and state."""
    return named("runs", run)


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
