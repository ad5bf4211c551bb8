"""Jobs without a container: begun, followed, asked, ended and forgotten."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable
from typing import Any

from gpuinfra.remote import heartbeat, home, processes, run_folder, states
from gpuinfra.remote.home import remove_tree
from gpuinfra.remote.supervisor import Supervisor
from gpuinfra.remote.wire import DATA, GoneError, RefusedError, Wire

CHUNK = 1 << 18
FIRST_PAUSE, LONGEST_PAUSE = 0.005, 0.05
# So often something is said, so that a peer who is gone is noticed.
SILENCE_SECONDS = 15.0
START_SECONDS, CANCEL_SECONDS, FORGET_SECONDS = 30.0, 30.0, 3.0
# For an engine that is stopped, or restarts. What is left then the next job of the project removes.
REMOVE_SECONDS, FIRST_REMOVE_PAUSE, LONGEST_REMOVE_PAUSE = 3600.0, 0.5, 30.0
KEPT = frozenset({run_folder.OUTPUTS, run_folder.STATE})

is_over = states.is_over


def start(wire: Wire, request: dict[str, Any]) -> None:
    """Begin a job. One that was begun already, by a call whose answer was lost, is not begun again."""
    order = request["order"]
    run = order["run"]
    os.makedirs(os.path.join(home.run_folder(run), run_folder.OUTPUTS), exist_ok=True)
    ends = time.monotonic() + START_SECONDS
    while True:
        lock = states.take(run)
        state = states.read(run)
        if state is not None:
            if lock is not None:
                os.close(lock)
            wire.send_json({"started": state["started"], "again": True})
            return
        if lock is not None:
            break
        if time.monotonic() > ends:
            raise RefusedError("busy", f"another call is about to begin run {run}")
        time.sleep(LONGEST_PAUSE)
    supervisor = Supervisor(order, request.get("secrets", {}))
    try:
        report = processes.detach(supervisor.work, lock)
    finally:
        os.close(lock)
    wire.send_json(report)


def frames(wire: Wire, request: dict[str, Any]) -> None:
    """The bytes of its log from there on, as they come; at the end how it ended."""
    run, size = request["run"], request["size"]
    pause, said = FIRST_PAUSE, time.monotonic()
    with _log_of(run) as file:
        file.seek(size)
        while True:
            state = states.looked_at(run)
            while True:
                data = file.read(CHUNK)
                if not data:
                    break
                wire.send(DATA, data)
                pause, said = FIRST_PAUSE, time.monotonic()
            if "ended" in state:
                break
            if time.monotonic() - said > SILENCE_SECONDS:
                wire.send(DATA, b"")
                said = time.monotonic()
            wire.flush()
            _pause(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
    wire.send_json(state)


def _log_of(run: str) -> Any:
    states.must_read(run)
    # It may not be there yet: the job has only just begun.
    return os.fdopen(os.open(states.path(run, run_folder.LOG), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb", 0)


def _pause(seconds: float) -> None:
    """Wait, unless the client hangs up."""
    if select.select([0], [], [], seconds)[0]:
        raise GoneError()


def state(wire: Wire, request: dict[str, Any]) -> None:
    """What is known of a job, with or without a container; `ending` is why the machine stops it, until its end is
    recorded."""
    found = states.looked_at(request["run"])
    ending = None if "ended" in found else states.read_stop_reason(request["run"])
    wire.send_json(dict(found, ending=ending) if ending else found)


def cancel(wire: Wire, request: dict[str, Any]) -> None:
    """Ask a job to end, kill it after the grace period, and wait for its end."""
    wire.send_json(_cancelled(request["run"], request["grace"]))


def _cancelled(run: str, grace: float) -> dict[str, Any]:
    ends = time.monotonic() + grace + CANCEL_SECONDS
    found = states.looked_at(run)
    if "ended" not in found:
        _tell(run, f"{grace}\n".encode())
    while "ended" not in found:
        if time.monotonic() > ends:
            raise RefusedError("still-runs", f"the job of run {run} does not end")
        time.sleep(LONGEST_PAUSE)
        found = states.looked_at(run)
    return found


def _tell(run: str, words: bytes) -> None:
    # If nothing reads it, the next look finds out why.
    with contextlib.suppress(OSError):
        control = os.open(states.path(run, run_folder.CONTROL), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(control, words)
        finally:
            os.close(control)


def forget(wire: Wire, request: dict[str, Any]) -> None:
    """End it if need be, and remove what is kept of it, but for its outputs and how it ended."""
    run = request["run"]
    found = states.read(run)
    if found is not None and found["kind"] == "process" and "ended" not in found:
        _cancelled(run, 0.0)
    elif found is not None and "ended" not in found:
        # Of a container that is removed as well: its watcher finds nothing more to see.
        states.write(run, dict(found, ended=time.time(), exitCode=None, how=run_folder.LOST))
    with contextlib.suppress(FileNotFoundError):
        for name in set(os.listdir(home.run_folder(run))) - KEPT:
            os.unlink(states.path(run, name))
    wire.send_json({})


def forget_run(wire: Wire, request: dict[str, Any]) -> None:
    """Remove all that is kept of a run, its outputs too; its container goes by and by. Absent is done.

    Where the machine is to end with the run, the state stays: the run is over, and its client may be gone. If it is
    killed before it has switched the machine off, the guest agent does that.
    """
    run, found = request["run"], states.read(request["run"])
    if request.get("container") and found is not None:
        _remove_container(found.get("docker") or ["docker"], request["container"])
    # The watcher of a container that was just removed needs a moment to see it.
    ends = time.monotonic() + FORGET_SECONDS
    while states.read(run) is not None and not is_over(run):
        if time.monotonic() > ends:
            if request.get("container"):
                break  # the engine does not answer; the client knows that the job has ended
            raise RefusedError("still-runs", f"the job of run {run} has not ended")
        time.sleep(LONGEST_PAUSE)
    gone = remove(run)
    wire.send_json({"left": gone if os.path.isdir(gone) else None})


def remove(run: str) -> str:
    """Remove the folder of a run that is over; the path at which what cannot be removed is left."""
    gone, kept = home.named(run_folder.RUNS, f".gone-{run}"), _to_be_known(run)
    with contextlib.suppress(FileNotFoundError, OSError):
        # In one step, so that no reader finds half of the run's state.
        os.rename(home.run_folder(run), gone)
        if kept:
            os.mkdir(home.run_folder(run))
            states.write(run, kept)
            os.rename(os.path.join(gone, run_folder.HEARTBEAT), states.path(run, run_folder.HEARTBEAT))
    remove_tree(gone)
    return gone


def _to_be_known(run: str) -> dict[str, Any] | None:
    """The state of a run that is over, or never began, and with which the machine is to end."""
    if not heartbeat.ends_the_machine(run):
        return None
    return {
        "kind": "process",
        "ended": time.time(),
        "exitCode": None,
        "how": run_folder.LOST,
        **(states.read(run) or {}),
    }


def _remove_container(docker: list[str], container: str) -> None:
    """Remove it in the background, as soon as its engine answers."""

    def work(report: Callable[[dict[str, Any]], None]) -> None:
        report({})
        pause, ends = FIRST_REMOVE_PAUSE, time.monotonic() + REMOVE_SECONDS
        while not _is_removed(docker, container) and time.monotonic() < ends:
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_REMOVE_PAUSE)

    with contextlib.suppress(OSError):
        processes.detach(work, 0)


def _is_removed(docker: list[str], container: str) -> bool:
    import subprocess  # it takes a while, and few calls need it

    words = [*docker, "rm", "--force", "--volumes", container]
    null = subprocess.DEVNULL
    try:
        done = subprocess.run(  # noqa: S603 the engine's own program
            words, stdin=null, stdout=null, stderr=subprocess.PIPE, timeout=states.DOCKER_SECONDS, check=False
        )
    except FileNotFoundError:
        return True  # there is no engine to wait for
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 or b"no such container" in done.stderr.lower()


def runs(wire: Wire, request: dict[str, Any]) -> None:
    """List every run of this machine, from any workspace: whether it is over, and whether it has outputs."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for run in sorted(each for each in os.listdir(home.named(run_folder.RUNS)) if not each.startswith(".")):
            outputs = os.path.join(home.run_folder(run), run_folder.OUTPUTS)
            has_outputs = os.path.isdir(outputs) and bool(os.listdir(outputs))
            found.append({"run": run, "over": is_over(run), "outputs": has_outputs})
    wire.send_json({"runs": found})


def keep_run(wire: Wire, request: dict[str, Any]) -> None:
    """Say that a run whose job has not begun yet is still wanted: its environment is being made."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(home.run_folder(request["run"]))
    wire.send_json({})


VERBS: dict[str, Callable[..., None]] = {
    "job-start": start,
    "job-frames": frames,
    "job-state": state,
    "job-cancel": cancel,
    "job-forget": forget,
    "run-forget": forget_run,
    "run-keep": keep_run,
    "runs": runs,
}
