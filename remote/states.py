"""What this machine knows about a run: its state, whether something watches it, why the machine stops it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from gpuinfra.remote import home, processes
from gpuinfra.remote.run_folder import ALIVE, BY_MACHINE, LOST, SPARE, STATE, STOP_REASON, container_name
from gpuinfra.remote.wire import RefusedError

# Of a run that has no state yet: its project is being sent, or its client has given up.
GIVEN_UP_SECONDS = 15 * 60
DOCKER_SECONDS = 30.0
# A state is written into space that was taken before: a full disk must not hide how a job ended.
SPARE_SIZE = 4096


def path(run: str, name: str) -> str:
    """A file of the run's own."""
    return os.path.join(home.run_folder(run), name)


def read(run: str) -> dict[str, Any] | None:
    """Its state; None where it has none."""
    try:
        with open(path(run, STATE), "rb") as file:
            found: dict[str, Any] = json.loads(file.read())
    except (FileNotFoundError, ValueError):  # the latter is what is left of it after a power cut
        return None
    return found


def must_read(run: str) -> dict[str, Any]:
    """Its state; refuses where it has none."""
    state = read(run)
    if state is None:
        raise RefusedError("no-such-run", f"there is no job of run {run} on this machine")
    return state


def write(run: str, state: dict[str, Any]) -> None:
    """Its state, all of it or nothing."""
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
    """Take the space for one more state."""
    file = os.open(path(run, SPARE), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, b" " * SPARE_SIZE)
    finally:
        os.close(file)


def take(run: str) -> int | None:
    """Take the lock that a job's watcher holds, as a file; None if another process has it."""
    file = os.open(path(run, ALIVE), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    return file


def is_alive(run: str) -> bool:
    """Whether the job has a watcher."""
    try:
        file = os.open(path(run, ALIVE), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def looked_at(run: str) -> dict[str, Any]:
    """Return its state, and whether it is watched; a process whose supervisor is gone is lost from now on."""
    state = must_read(run)
    if "ended" in state:
        return dict(state, alive=False)
    if is_alive(run):
        return dict(state, alive=True)
    # The watcher records the end before it releases the lock.
    state = must_read(run)
    if "ended" not in state and state["kind"] == "process":
        lock = take(run)
        if lock is None:  # another process is about to record it
            return dict(state, alive=True)
        try:
            state = _lost(run, state)
        finally:
            os.close(lock)
    return dict(state, alive=False)


def _lost(run: str, state: dict[str, Any]) -> dict[str, Any]:
    """Record that its end is unknown, and stop what is left of it: others use its folder now."""
    pid = state.get("pid")
    if pid and state.get("ticks") and ticks(pid) == state["ticks"]:
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    processes.end(lambda: processes.marked(run))
    lost = {"how": LOST, "detail": "the process that watched it is gone"}
    # The machine may have gone off before more was recorded than that it would.
    state = dict(state, ended=time.time(), exitCode=None, **(read_stop_reason(run) or lost))
    write(run, state)
    return state


def ticks(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks: a later process with the same number has others."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return None


def is_over(run: str) -> bool:
    """Whether nothing of the run is active here, so that others may use its folder."""
    state = read(run)
    if state is None:
        try:
            began = os.stat(home.run_folder(run)).st_mtime
        except FileNotFoundError:
            return True
        # A container without a watcher still counts.
        return time.time() - began > GIVEN_UP_SECONDS and not _runs_unwatched(run)
    state = looked_at(run)
    if "ended" in state:
        return True
    return state["kind"] == "container" and not state["alive"] and _is_container_over(run, state)


def _runs_unwatched(run: str) -> bool:
    found = inspect(["docker"], container_name(run))
    return found is not None and found.get("Status", "exited") not in {"exited", "dead", "created"}


def _is_container_over(run: str, state: dict[str, Any]) -> bool:
    found = inspect(state.get("docker", ["docker"]), state["container"])
    if found is None:
        return True
    if found.get("Status") == "created":
        return time.time() - os.stat(home.run_folder(run)).st_mtime > GIVEN_UP_SECONDS
    return found.get("Status") in {"exited", "dead"}


def inspect(docker: Sequence[str], container: str) -> dict[str, Any] | None:
    """The engine's word on a container's state: None where it knows none, nothing in it where it does not answer."""
    import subprocess  # it takes a while, and few calls need it

    words = [*docker, "inspect", "--type", "container", "--format", "{{json .State}}", container]
    try:
        done = subprocess.run(  # noqa: S603 no word of it is from others
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=DOCKER_SECONDS, check=False
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


LONGEST_DETAIL = 1000


def read_stop_reason(run: str) -> dict[str, str] | None:
    """Return how and why the machine stops the job; None if it does not, or if the file is invalid."""
    try:
        with open(_stop_reason_path(run), "rb") as file:
            found = json.loads(file.read())
    except (OSError, ValueError):
        return None
    if not isinstance(found, dict) or found.get("how") not in BY_MACHINE:
        return None
    return {"how": str(found["how"]), "detail": str(found.get("detail") or "")[:LONGEST_DETAIL]}


def stop_reason_at(run: str, ended: float) -> dict[str, str]:
    """Return why the machine stopped a job that ended at this time; nothing if the job had ended before."""
    found = read_stop_reason(run)
    try:
        # By the second: some file systems keep no more of a file's time.
        is_before = os.stat(_stop_reason_path(run)).st_mtime - 1.0 > ended
    except OSError:
        return {}
    return {} if found is None or is_before else {key: value for key, value in found.items() if value}


def _stop_reason_path(run: str) -> str:
    return os.path.join(home.run_folder(run), STOP_REASON)
