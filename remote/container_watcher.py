"""Watch a job in a container, with or without a client: wait for its end, stop it in time, sample its GPUs."""

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
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
# An engine that is gone for so long does not come again with the same containers.
GONE_SECONDS = 24 * 3600.0
STOP_SECONDS = 60.0
LONGEST_WAIT = 60.0


def watch(wire: Wire, request: dict[str, Any]) -> None:
    """Start to watch a container, unless a watcher runs already."""
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
        report = processes.detach(ContainerWatcher(request, state).work, lock)
    finally:
        os.close(lock)
    wire.send_json(report)


class ContainerWatcher:
    """One container, until it has ended."""

    def __init__(self, request: dict[str, Any], state: dict[str, Any]) -> None:
        self._run: str = request["run"]
        self._container: str = request["container"]
        self._folder = home.run_folder(self._run)
        self._docker: list[str] = state["docker"]
        self._timeout, self._grace = request.get("timeout"), request.get("grace", 10.0)
        self._state = state
        # That its time was up is in the state: it stays known if this watcher is lost.
        self._has_stopped = self._has_engine_failed = False
        self._waiter: Any = None
        self._pause, self._again_at, self._gone_since = FIRST_PAUSE, 0.0, 0.0
        self._sampler: Sampler | None = None
        if request.get("gpu"):
            words = [*self._docker, "exec", self._container, "nvidia-smi"]
            self._sampler = Sampler(words, states.path(self._run, run_folder.SAMPLES))

    def work(self, report: Callable[[dict[str, Any]], None]) -> None:
        """All of it."""
        os.chdir(self._folder)
        report({"started": self._state["started"]})
        while "ended" not in self._state:
            self._serve()
        for child in (self._sampler, self._waiter):
            if child:
                _stop(child)
        # The run may have been removed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            states.write(self._run, self._state)

    def _serve(self) -> None:
        now = time.monotonic()
        if self._waiter is None and now >= self._again_at:
            self._waiter = _waiter([*self._docker, "wait", self._container])
            if self._waiter is None:
                self._look()
        if self._sampler and self._sampler.due is not None and now >= self._sampler.due:
            self._sampler.start()
        poll = select.poll()
        sampling = self._sampler.fileno if self._sampler else None
        waiting = self._waiter.stdout.fileno() if self._waiter else None
        for number in (sampling, waiting):
            if number is not None:
                poll.register(number, select.POLLIN)
        for number, _ in poll.poll(self._wait_milliseconds()):
            if number == sampling and self._sampler:
                self._sampler.serve()
            elif not os.read(number, 1 << 10):
                self._look()
        self._stop_in_time()

    def _wait_milliseconds(self) -> float:
        moments = [time.monotonic() + LONGEST_WAIT]
        if self._waiter is None:
            moments.append(self._again_at)
        if self._sampler and self._sampler.due is not None:
            moments.append(self._sampler.due)
        left = min(moments) - time.monotonic()
        if self._timeout and not self._has_stopped:
            left = min(left, self._state["started"] + self._timeout - time.time())
        return 1000 * max(0.0, left) + 1

    def _look(self) -> None:
        """`docker wait` has ended: because the container has, or because the engine is gone."""
        code = 1
        if self._waiter:
            code = _stop(self._waiter)
            self._waiter = None
        found = states.inspect(self._docker, self._container)
        if found is None:
            self._state.update(_lost("the engine forgot it"))
        elif found.get("Status") in {"exited", "dead"}:
            self._state.update(self._ended(found))
        else:
            self._has_engine_failed |= code != 0
            self._try_again(is_there=bool(found))

    def _try_again(self, *, is_there: bool) -> None:
        now = time.monotonic()
        self._pause = FIRST_PAUSE if is_there else min(2 * self._pause, LONGEST_PAUSE)
        self._again_at = now + self._pause
        self._gone_since = 0.0 if is_there else self._gone_since or now
        # A run that was removed as well does not come back.
        patience = GONE_SECONDS if os.path.isdir(self._folder) else 0.0
        if not is_there and now - self._gone_since >= patience:
            self._state.update(_lost("the engine does not answer"))

    def _ended(self, found: dict[str, Any]) -> dict[str, Any]:
        code = found.get("ExitCode")
        how = self._state.get("how")
        if not how and found.get("OOMKilled"):
            how = run_folder.OUT_OF_MEMORY
        elif not how:
            is_killed = self._has_engine_failed and code in {137, 143}
            how = run_folder.ENGINE_STOPPED if is_killed else run_folder.EXITED
        at = moment(found.get("FinishedAt")) or time.time()
        ended: dict[str, Any] = {"ended": at, "exitCode": code, "how": how}
        if found.get("Error"):
            ended["detail"] = str(found["Error"])[:1000]
        if how in {run_folder.EXITED, run_folder.ENGINE_STOPPED}:
            # Docker does not know why a container was stopped. If the machine stopped it, its agent wrote down why.
            ended.update(states.stop_reason_at(self._run, at))
        return ended

    def _stop_in_time(self) -> None:
        if not self._timeout or self._has_stopped or "ended" in self._state:
            return
        if time.time() < self._state["started"] + self._timeout:
            return
        import subprocess  # it takes a while, and few calls need it

        if "how" not in self._state:
            self._state["how"] = run_folder.TIMED_OUT
            with contextlib.suppress(OSError):
                states.write(self._run, self._state)
                states.reserve(self._run)
        words = [*self._docker, "stop", "-t", str(max(0, round(self._grace))), self._container]
        null = subprocess.DEVNULL
        try:
            done = subprocess.run(  # noqa: S603 the engine's own program
                words, stdin=null, stdout=null, stderr=null, timeout=self._grace + STOP_SECONDS, check=False
            )
            self._has_stopped = done.returncode == 0
        except (OSError, subprocess.TimeoutExpired):
            pass  # the engine is busy, or gone for the moment
        if not self._has_stopped:
            time.sleep(1)


def _lost(detail: str) -> dict[str, Any]:
    return {"ended": time.time(), "exitCode": None, "how": run_folder.LOST, "detail": detail}


def _waiter(words: list[str]) -> Any:
    """Its output comes to an end when the container's life has; None where it cannot even begin."""
    import subprocess  # it takes a while, and few calls need it

    null = subprocess.DEVNULL
    try:
        return subprocess.Popen(  # noqa: S603
            words, stdin=null, stdout=subprocess.PIPE, stderr=null, start_new_session=True
        )
    except OSError:
        return None


def _stop(child: Any) -> int:
    """The end of a child, now, and its exit code."""
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


def moment(text: Any) -> float | None:
    """Seconds since 1970, of what the engine says: `2026-11-16T12:15:30.123456789Z`; None where it is none."""
    import calendar

    found = re.match(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8})(\.[0-9]+)?Z$", str(text))
    if not found or found[1].startswith("0001"):
        return None
    seconds = calendar.timegm(time.strptime(found[1], "%Y-%m-%dT%H:%M:%S"))
    return seconds + float(found[2] or 0)


VERBS: dict[str, Callable[..., None]] = {"watch": watch}
