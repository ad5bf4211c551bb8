"""The runs that the machine knows, from their folders and the container engine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from gpuinfra.remote.agent.decide import Run
from gpuinfra.remote.agent.guest import Program, age_of, read_object, write_json
from gpuinfra.remote.agent.terms import positive
from gpuinfra.remote.run_folder import (
    ALIVE,
    CONTROL,
    HEARTBEAT,
    ROOT,
    RUNS,
    STATE,
    STOP_REASON,
    container_name,
    failed_by_itself,
)


def _is_container(state: dict[str, Any] | None) -> bool:
    """Return whether a run has a container that is not known to have ended."""
    return state is not None and state.get("kind") == "container" and "ended" not in state


class Runs:
    """The runs that this machine knows."""

    def __init__(self, home: str, booted: float) -> None:
        self._folder = os.path.join(home, ROOT, RUNS)
        self._booted = booted
        ours = f"name={container_name('')}"
        self._docker = Program(["docker", "ps", "--no-trunc", "--filter", ours, "--format", "{{.Names}}"])

    def look(self) -> tuple[Run, ...]:
        """Return all runs."""
        try:
            names = sorted(name for name in os.listdir(self._folder) if not name.startswith("."))
        except OSError:
            return ()
        states = {name: self._state(name) for name in names if os.path.isdir(self.path(name))}
        # Query the engine only if there may be a container: for a run that is not known to be over.
        containers = self._containers() if any("ended" not in (state or {}) for state in states.values()) else set()
        return tuple(self._run(name, state, containers) for name, state in states.items())

    def path(self, *parts: str) -> str:
        """Return the path of a run's folder, or of a file in it."""
        return os.path.join(self._folder, *parts)

    def _state(self, run: str) -> dict[str, Any] | None:
        return read_object(self.path(run, STATE))

    def _containers(self) -> set[str] | None:
        """Return the running containers, or None if the engine does not answer."""
        output = self._docker.ask()
        return None if output is None else set(output.split())

    def _run(self, name: str, state: dict[str, Any] | None, containers: set[str] | None) -> Run:
        last = read_object(self.path(name, HEARTBEAT)) or {}
        heartbeat = age_of(self.path(name, HEARTBEAT))
        began = positive((state or {}).get("started"))
        newest = began if began is not None else time.time() - (heartbeat or 0.0)
        of_this_boot = newest >= self._booted
        container = container_name(name) in containers if containers is not None else _is_container(state)
        # If the engine does not answer, containers of this boot may still run.
        alive = (container and (containers is not None or of_this_boot)) or self._is_watched(name, state)
        after_run = last.get("afterRun")
        return Run(
            id=name,
            alive=alive,
            container=container,
            after_run=after_run if isinstance(after_run, str) else None,
            heartbeat_age=heartbeat,
            detached=last.get("detached") is True,
            ended_age=None if alive or state is None else self._ended_age(name, state),
            of_this_boot=of_this_boot,
            failed=state is not None and failed_by_itself(state),
            keep_on_failure=positive(last.get("keepOnFailure")),
        )

    def _is_watched(self, run: str, state: dict[str, Any] | None) -> bool:
        """Return whether a process watches the job: it holds a lock until the job's end is recorded."""
        if state is None or "ended" in state:
            return False
        try:
            file = os.open(self.path(run, ALIVE), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(file)
        return False

    def _ended_age(self, run: str, state: Mapping[str, Any]) -> float:
        ended = positive(state.get("ended")) or positive(state.get("started"))
        if ended is None:
            return age_of(self.path(run, STATE)) or 0.0
        return time.time() - ended

    def end(self, run: Run, how: str, detail: str, grace: float) -> None:
        """Ask a job to end, and record why. A failure to record does not prevent the request."""
        with contextlib.suppress(OSError):
            write_json(self.path(run.id, STOP_REASON), {"how": how, "detail": detail})
        if run.container:
            null = subprocess.DEVNULL
            words = ["docker", "stop", "-t", str(max(1, int(grace))), container_name(run.id)]
            with contextlib.suppress(OSError):
                subprocess.Popen(words, stdin=null, stdout=null, stderr=null, start_new_session=True)  # noqa: S603
            return
        with contextlib.suppress(OSError):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            control = os.open(self.path(run.id, CONTROL), flags)
            try:
                if stat.S_ISFIFO(os.fstat(control).st_mode):
                    os.write(control, f"{grace:g}\n".encode())
            finally:
                os.close(control)
