"""The recorded state of a run: how its job is, whether a process watches it, why the machine stops it."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from gpuinfra.remote import home, processes
from gpuinfra.remote.run_folder import ALIVE, BY_MACHINE, HEARTBEAT, LOST, SPARE, STATE, STOP_REASON, container_name
from gpuinfra.remote.wire import RefusedError

# A run without a state after this long has no client: it prepares a job for at most this long without a renewal.
ABANDONED_SECONDS = 15 * 60
# A client that prepares a job sends a heartbeat every few seconds. Without one for this long, the run keeps nothing on.
SILENT_SECONDS = 2 * 60
DOCKER_SECONDS = 30.0
# A state is written into reserved space, so that a full disk does not hide how a job ended.
SPARE_SIZE = 4096


def path(run: str, name: str) -> str:
    """Return the path of a file in the run's folder."""
    return os.path.join(home.run_folder(run), name)


def read(run: str) -> dict[str, Any] | None:
    """Return the state of a run, or None if it has none."""
    try:
        with open(path(run, STATE), "rb") as file:
            found: dict[str, Any] = json.loads(file.read())
    except (FileNotFoundError, ValueError):  # a power cut can leave an incomplete file
        return None
    return found


def must_read(run: str) -> dict[str, Any]:
    """Return the state of a run. Raise RefusedError if it has none."""
    state = read(run)
    if state is None:
        raise RefusedError("no-such-run", f"run {run} has no job on this machine")
    return state


def write(run: str, state: dict[str, Any]) -> None:
    """Write the state of a run atomically, into the reserved space."""
    spare = path(run, SPARE)
    file = os.open(spare, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        text = json.dumps(state).encode()
        text += b" " * (SPARE_SIZE - len(text))
        if os.write(file, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), spare)
        os.ftruncate(file, len(text))
        if "ended" in state:
            os.fsync(file)
    finally:
        os.close(file)
    os.replace(spare, path(run, STATE))


def reserve(run: str) -> None:
    """Reserve disk space for the next state."""
    file = os.open(path(run, SPARE), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, b" " * SPARE_SIZE)
    finally:
        os.close(file)


def take(run: str) -> int | None:
    """Take the lock of a job's watcher. Return the open file that keeps it, or None if another process has it."""
    file = os.open(path(run, ALIVE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if home.try_lock(file):
        return file
    os.close(file)
    return None


def is_alive(run: str) -> bool:
    """Return whether a process watches the job."""
    try:
        file = os.open(path(run, ALIVE), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not home.try_lock(file, shared=True)
    finally:
        os.close(file)


def check(run: str) -> dict[str, Any]:
    """Return the state of a run and whether it is watched. Record a process job as lost if its supervisor has ended."""
    state = must_read(run)
    if "ended" in state:
        return dict(state, alive=False)
    if is_alive(run):
        return dict(state, alive=True)
    # The watcher releases the lock after it has recorded the end.
    state = must_read(run)
    if "ended" not in state and state["kind"] == "process":
        lock = take(run)
        if lock is None:  # another process is recording it
            return dict(state, alive=True)
        try:
            state = _record_loss(run, state)
        finally:
            os.close(lock)
    return dict(state, alive=False)


def _record_loss(run: str, state: dict[str, Any]) -> dict[str, Any]:
    """Kill the processes that are left of a job, because other runs may use its folder, and record that it is lost."""
    pid = state.get("pid")
    if pid and state.get("ticks") and ticks(pid) == state["ticks"]:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    processes.end(lambda: processes.marked(run))
    lost = {"how": LOST, "detail": "its supervisor ended before the job"}
    # The machine may have been deallocated after it recorded the reason and before it recorded the end.
    state = dict(state, ended=time.time(), exitCode=None, **(read_stop_reason(run) or lost))
    write(run, state)
    return state


def ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, to recognize a reused process ID."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def is_over(run: str) -> bool:
    """Return whether nothing of the run is active on this machine."""
    state = read(run)
    if state is None:
        try:
            began = os.stat(home.run_folder(run)).st_mtime
        except FileNotFoundError:
            return True
        # Its container may run without a watcher.
        return time.time() - began > ABANDONED_SECONDS and not _runs_unwatched(run)
    state = check(run)
    if "ended" in state:
        return True
    return state["kind"] == "container" and not state["alive"] and _is_container_over(run, state)


def is_deserted(run: str) -> bool:
    """Return whether the run has no job, and its client was connected but is gone."""
    try:
        seen = os.stat(path(run, HEARTBEAT)).st_mtime
    except OSError:
        return False
    return time.time() - seen > SILENT_SECONDS and read(run) is None and not _runs_unwatched(run)


def _runs_unwatched(run: str) -> bool:
    found = inspect(["docker"], container_name(run))
    return found is not None and found.get("Status", "exited") not in {"exited", "dead", "created"}


def _is_container_over(run: str, state: dict[str, Any]) -> bool:
    found = inspect(state.get("docker", ["docker"]), state["container"])
    if found is None:
        return True
    if found.get("Status") == "created":
        return time.time() - os.stat(home.run_folder(run)).st_mtime > ABANDONED_SECONDS
    return found.get("Status") in {"exited", "dead"}


def inspect(docker: Sequence[str], container: str) -> dict[str, Any] | None:
    """Return the engine's state of a container: None if it does not exist, empty if the engine does not answer."""
    import subprocess  # slow to import, and few calls need it

    command = [*docker, "inspect", "--type", "container", "--format", "{{json .State}}", container]
    try:
        done = subprocess.run(  # noqa: S603 no word of it is from others
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=DOCKER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    if done.returncode:
        return None if b"no such container" in done.stderr.lower() else {}
    try:
        found = json.loads(done.stdout)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


MAX_DETAIL = 1000


def read_stop_reason(run: str) -> dict[str, str] | None:
    """Return how and why the machine stops the job, or None if it does not or the file is invalid."""
    found = home.read_object(_stop_reason_path(run))
    if found is None or found.get("how") not in BY_MACHINE:
        return None
    return {"how": str(found["how"]), "detail": str(found.get("detail") or "")[:MAX_DETAIL]}


def stop_reason_at(run: str, ended: float) -> dict[str, str]:
    """Return why the machine stopped a job that ended at this time, or nothing if the job had already ended."""
    found = read_stop_reason(run)
    try:
        # Some file systems store times in whole seconds.
        is_before = os.stat(_stop_reason_path(run)).st_mtime - 1.0 > ended
    except OSError:
        return {}
    return {} if found is None or is_before else {key: value for key, value in found.items() if value}


def _stop_reason_path(run: str) -> str:
    return os.path.join(home.run_folder(run), STOP_REASON)
