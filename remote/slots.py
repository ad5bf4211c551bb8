"""Slots: each holds one copy of a project on this machine, for one run at a time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from typing import Any

from gpuinfra.remote import home, processes, run_folder, states
from gpuinfra.remote.home import remove_tree
from gpuinfra.remote.run_folder import STATE
from gpuinfra.remote.wire import RefusedError

# After this long without a job or a renewal, the client of a run is considered lost.
HOLD_SECONDS = 15 * 60.0
LOCK_SECONDS = 30.0
# The next upload removes copies that no run has used for this long.
UNUSED_SECONDS = 24 * 3600.0
# How long the process of a lost connection for the same run has to end before it is killed.
TAKE_OVER_SECONDS = 1.0
# JSON: which folders of the tree are for outputs, and of which run.
OUTPUTS_FILE = "outputs.json"
PATTERN = re.compile(r"slot-([1-9][0-9]{0,5})\Z")


class Lock:
    """A lock file. It contains the ID of the process that holds it."""

    def __init__(self, path: str) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def try_now(self) -> bool:
        """Take the lock, and return whether that succeeded."""
        if not home.try_lock(self._handle):
            return False
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, str(os.getpid()).encode(), 0)
        return True

    def wait(self, seconds: float) -> bool:
        """Take the lock within this time, and return whether that succeeded."""
        ends = time.monotonic() + seconds
        while not self.try_now():
            if time.monotonic() > ends:
                return False
            time.sleep(0.01)
        return True

    def take_over(self) -> bool:
        """Take the lock. Kill the process that holds it if it does not release it in time."""
        if self.wait(TAKE_OVER_SECONDS):
            return True
        with contextlib.suppress(ValueError, OSError):
            # The holder of the lock still runs, so its process ID was not reused.
            os.kill(int(os.pread(self._handle, 20, 0)), signal.SIGKILL)
        return self.wait(LOCK_SECONDS)

    def fileno(self) -> int:
        """Return the open file, which keeps the lock."""
        return self._handle

    def close(self) -> None:
        """Release the lock."""
        os.close(self._handle)


class Slot:
    """A project's copy on this machine, locked during an upload."""

    def __init__(self, folder: str, lock: Lock) -> None:
        self.folder, self._lock = folder, lock
        self.name = os.path.basename(folder)
        self.tree = os.path.join(folder, "tree")
        self.index = os.path.join(folder, "index")
        self.previous = holder(folder)
        """The run that used it before, or an empty text."""

    def hold(self, run: str) -> None:
        """Record that this run uses the slot from now on."""
        home.replace(os.path.join(self.folder, "holder"), run)

    def record_outputs(self, run: str, names: Sequence[str]) -> None:
        """Record which folders of the tree are for outputs, and of which run. Another run may hold the slot by now."""
        home.replace(os.path.join(self.folder, OUTPUTS_FILE), json.dumps({"run": run, "names": list(names)}))

    def renew(self) -> None:
        """Record that the run still prepares its job."""
        with contextlib.suppress(OSError):
            os.utime(os.path.join(self.folder, "holder"))

    def close(self) -> None:
        """Release the lock. The run still holds the slot."""
        self._lock.close()


def holder(folder: str) -> str:
    """Return the run that holds a slot, or an empty text."""
    try:
        with open(os.path.join(folder, "holder")) as file:
            return file.read()
    except (OSError, ValueError):
        return ""


def outputs_of(folder: str) -> tuple[str, list[str]]:
    """Return the run whose outputs are in a slot's tree, or an empty text, and the folders for them."""
    found = home.read_object(os.path.join(folder, OUTPUTS_FILE)) or {}
    return str(found.get("run", "")), [str(name) for name in found.get("names", [run_folder.OUTPUTS])]


def folders(project: str) -> list[str]:
    """Return the folders of a project's slots, in order."""
    above = home.named("projects", project)
    found = [int(match.group(1)) for match in map(PATTERN.match, os.listdir(above)) if match]
    return [os.path.join(above, f"slot-{number}") for number in sorted(found)]


def take(project: str, run: str, abandoned: Sequence[str] = ()) -> Slot:
    """Lock a slot for this run: its own, one of an abandoned run, a free one, or a new one."""
    above = home.named("projects", project)
    home.run_folder(run)  # refuses an invalid name
    os.makedirs(above, exist_ok=True)
    choice = Lock(os.path.join(above, "lock"))
    try:
        if not choice.wait(LOCK_SECONDS):
            raise RefusedError("busy", "another upload of this project holds its lock")
        slot = _own(project, [run]) or _own(project, abandoned) or _free(project) or _new(project)
        slot.hold(run)
        return slot
    finally:
        choice.close()


def _own(project: str, runs: Sequence[str]) -> Slot | None:
    for folder in folders(project):
        if holder(folder) in runs:
            lock = Lock(os.path.join(folder, "lock"))
            if not lock.take_over():
                lock.close()
                raise RefusedError("busy", "an earlier upload of this run does not end")
            return Slot(folder, lock)
    return None


def _free(project: str) -> Slot | None:
    for folder in folders(project):
        if is_free(folder):
            lock = Lock(os.path.join(folder, "lock"))
            if lock.try_now():
                return Slot(folder, lock)
            lock.close()
    return None


def _new(project: str) -> Slot:
    taken = folders(project)
    number = int(taken[-1].rpartition("-")[2]) + 1 if taken else 1
    folder = home.named("projects", project, f"slot-{number}")
    os.mkdir(folder)
    lock = Lock(os.path.join(folder, "lock"))
    lock.try_now()  # no other process knows the folder yet
    return Slot(folder, lock)


def remove_unused(project: str) -> None:
    """Remove copies that no run has used for a day, in the background."""
    for folder in folders(project):
        if _is_unused(folder):
            lock = Lock(os.path.join(folder, "lock"))
            try:
                if lock.try_now() and _is_unused(folder):
                    processes.run(_emptier(folder), lock.fileno())
            finally:
                lock.close()


def _is_unused(folder: str) -> bool:
    """Return whether a slot has a copy that no run needs. A copy in which a job left outputs is kept."""
    tree = os.path.join(folder, "tree")
    outputs = [os.path.join(tree, name) for name in outputs_of(folder)[1]]
    with contextlib.suppress(OSError):
        age = time.time() - os.stat(os.path.join(folder, "holder")).st_mtime
        has_outputs = any(os.path.lexists(each) and not _is_empty_folder(each) for each in outputs)
        return age > UNUSED_SECONDS and bool(os.listdir(tree)) and not has_outputs and is_free(folder)
    return False


def _is_empty_folder(path: str) -> bool:
    # A job may have replaced its folder by a file or a link.
    return not os.path.islink(path) and os.path.isdir(path) and not os.listdir(path)


def _emptier(folder: str) -> Callable[..., None]:
    def empty(report: Callable[[dict[str, Any]], None]) -> None:
        report({})
        for name in ("tree", "staging"):
            # Files that a container's root created stay; the next upload to the slot removes them.
            remove_tree(os.path.join(folder, name))

    return empty


def is_free(folder: str) -> bool:
    """Return whether no run needs the slot."""
    run = holder(folder)
    try:
        return not run or _is_over(run, folder)
    except RefusedError:
        return True  # not the name of a run


def _is_over(run: str, folder: str) -> bool:
    run_folder = home.run_folder(run)
    age = time.time() - os.stat(os.path.join(folder, "holder")).st_mtime
    if age < HOLD_SECONDS and os.path.isdir(run_folder) and not os.path.exists(os.path.join(run_folder, STATE)):
        # Its job has not started. An upload renews the slot while it runs; other preparation renews the run's folder,
        # which `states.is_over` checks.
        return False
    return states.is_over(run)
