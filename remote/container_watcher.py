"""Watch a container job without a client: record its end, enforce its timeout, sample its GPUs."""

from __future__ import annotations

import contextlib
import os
import re
import select
import time
from collections.abc import Callable
from typing import Any

from gpuinfra.remote import home, processes, run_folder, states
from gpuinfra.remote.samples import Sampler
from gpuinfra.remote.wire import Wire

DOCKER = ("docker",)
FIRST_PAUSE, MAX_PAUSE = 0.5, 10.0
# After this long without an engine, the container is considered lost.
GONE_SECONDS = 24 * 3600.0
STOP_SECONDS = 60.0
MAX_WAIT = 60.0


def watch(wire: Wire, request: dict[str, Any]) -> None:
    """Start a watcher for a container, unless one already runs."""
    run = request["run"]
    os.makedirs(home.run_folder(run), exist_ok=True)
    lock = states.take(run)
    if lock is None:
        wire.send_json({"again": True})
        return
    try:
        known = states.read(run)
        if known and "ended" in known and known.get("container") == request["container"]:
            wire.send_json({"again": True})
            return
        docker = list(request.get("docker") or DOCKER)
        state = {"kind": "container", "container": request["container"], "docker": docker, "started": time.time()}
        if known and known.get("container") == request["container"]:
            state.update(known)  # another watcher ran before
        states.write(run, state)
        with contextlib.suppress(OSError):
            states.reserve(run)
        report = processes.run(ContainerWatcher(request, state).work, lock)
    finally:
        os.close(lock)
    wire.send_json(report)


class ContainerWatcher:
    """Watches one container until it has ended."""

    def __init__(self, request: dict[str, Any], state: dict[str, Any]) -> None:
        self._run: str = request["run"]
        self._container: str = request["container"]
        self._folder = home.run_folder(self._run)
        self._docker: list[str] = state["docker"]
        self._timeout, self._grace = request.get("timeout"), request.get("grace", 10.0)
        self._state = state
        # A timeout is recorded in the state, so a later watcher of the same job knows about it.
        self._has_stopped = self._has_engine_failed = False
        self._waiter: Any = None
        self._pause, self._again_at, self._gone_since = FIRST_PAUSE, 0.0, 0.0
        self._sampler: Sampler | None = None
        if request.get("gpu"):
            command = [*self._docker, "exec", self._container, "nvidia-smi"]
            self._sampler = Sampler(command, states.path(self._run, run_folder.SAMPLES))

    def work(self, report: Callable[[dict[str, Any]], None]) -> None:
        """Watch until the container has ended, and record how it ended."""
        os.chdir(self._folder)
        report({"started": self._state["started"]})
        while "ended" not in self._state:
            self._serve()
        for child in (self._sampler, self._waiter):
            if child:
                _stop(child)
        # The run may have been removed in the meantime.
        with contextlib.suppress(FileNotFoundError):
            states.write(self._run, self._state)

    def _serve(self) -> None:
        now = time.monotonic()
        if self._waiter is None and now >= self._again_at:
            self._waiter = _start_waiter([*self._docker, "wait", self._container])
            if self._waiter is None:
                self._inspect()
        if self._sampler and self._sampler.due is not None and now >= self._sampler.due:
            self._sampler.start()
        poll = select.poll()
        sampler_file = self._sampler.fileno if self._sampler else None
        waiter_file = self._waiter.stdout.fileno() if self._waiter else None
        for number in (sampler_file, waiter_file):
            if number is not None:
                poll.register(number, select.POLLIN)
        for number, _ in poll.poll(self._wait_milliseconds()):
            if number == sampler_file and self._sampler:
                self._sampler.serve()
            elif not os.read(number, 1 << 10):
                self._inspect()
        self._enforce_timeout()

    def _wait_milliseconds(self) -> float:
        moments = [time.monotonic() + MAX_WAIT]
        if self._waiter is None:
            moments.append(self._again_at)
        if self._sampler and self._sampler.due is not None:
            moments.append(self._sampler.due)
        left = min(moments) - time.monotonic()
        if self._timeout and not self._has_stopped:
            left = min(left, self._state["started"] + self._timeout - time.time())
        return 1000 * max(0.0, left) + 1

    def _inspect(self) -> None:
        """Ask the engine for the container's state, after `docker wait` has ended."""
        code = 1
        if self._waiter:
            code = _stop(self._waiter)
            self._waiter = None
        found = states.inspect(self._docker, self._container)
        if found is None:
            self._state.update(_lost("the engine no longer knows the container"))
        elif found.get("Status") in {"exited", "dead"}:
            self._state.update(self._ended(found))
        else:
            self._has_engine_failed |= code != 0
            self._schedule_retry(is_known=bool(found))

    def _schedule_retry(self, *, is_known: bool) -> None:
        now = time.monotonic()
        self._pause = FIRST_PAUSE if is_known else min(2 * self._pause, MAX_PAUSE)
        self._again_at = now + self._pause
        self._gone_since = 0.0 if is_known else self._gone_since or now
        # If the run's folder was removed too, do not wait for the engine.
        limit = GONE_SECONDS if os.path.isdir(self._folder) else 0.0
        if not is_known and now - self._gone_since >= limit:
            self._state.update(_lost("the engine does not answer"))

    def _ended(self, found: dict[str, Any]) -> dict[str, Any]:
        code = found.get("ExitCode")
        how = self._state.get("how")
        if not how and found.get("OOMKilled"):
            how = run_folder.OUT_OF_MEMORY
        elif not how:
            is_killed = self._has_engine_failed and code in {137, 143}
            how = run_folder.ENGINE_STOPPED if is_killed else run_folder.EXITED
        at = parse_time(found.get("FinishedAt")) or time.time()
        ended: dict[str, Any] = {"ended": at, "exitCode": code, "how": how}
        if found.get("Error"):
            ended["detail"] = str(found["Error"])[:1000]
        if how in {run_folder.EXITED, run_folder.ENGINE_STOPPED}:
            # Docker does not know why a container was stopped. If the guest agent did, it recorded the reason.
            ended.update(states.stop_reason_at(self._run, at))
        return ended

    def _enforce_timeout(self) -> None:
        if not self._timeout or self._has_stopped or "ended" in self._state:
            return
        if time.time() < self._state["started"] + self._timeout:
            return
        import subprocess  # slow to import, and few calls need it

        if "how" not in self._state:
            self._state["how"] = run_folder.TIMED_OUT
            with contextlib.suppress(OSError):
                states.write(self._run, self._state)
                states.reserve(self._run)
        command = [*self._docker, "stop", "-t", str(max(0, round(self._grace))), self._container]
        null = subprocess.DEVNULL
        try:
            done = subprocess.run(  # noqa: S603 the engine's own program
                command, stdin=null, stdout=null, stderr=null, timeout=self._grace + STOP_SECONDS, check=False
            )
            self._has_stopped = done.returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            pass  # the engine is busy or temporarily unavailable
        if not self._has_stopped:
            time.sleep(1)


def _lost(detail: str) -> dict[str, Any]:
    return {"ended": time.time(), "exitCode": None, "how": run_folder.LOST, "detail": detail}


def _start_waiter(command: list[str]) -> Any:
    """Start a program whose output ends when the container ends. Return None if it cannot start."""
    import subprocess  # slow to import, and few calls need it

    null = subprocess.DEVNULL
    try:
        return subprocess.Popen(  # noqa: S603
            command, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True
        )
    except OSError:
        return None


def _stop(child: Any) -> int:
    """Stop a child process and return its exit code."""
    if isinstance(child, Sampler):
        child.stop()
        return 0
    with contextlib.suppress(Exception):
        child.wait(1)
    child.kill()
    child.stdout.close()
    with contextlib.suppress(Exception):
        child.wait(5)
    return child.returncode or 0


def parse_time(text: Any) -> float | None:
    """Parse the engine's `2026-11-16T12:15:30.123456789Z` into seconds since 1970, or None if it is not a time."""
    import calendar

    found = re.match(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8})(\.[0-9]+)?Z$", str(text))
    if not found or found[1].startswith("0001"):
        return None
    seconds = calendar.timegm(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S"))
    return seconds + float(found[2] or 0)
