"""Start, follow, cancel and remove jobs that run without a container."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Callable
from typing import Any

from gpuinfra.remote import closing, heartbeat, home, output_folders, processes, recorder, run_folder, states
from gpuinfra.remote.home import remove_tree
from gpuinfra.remote.supervisor import Supervisor
from gpuinfra.remote.wire import DATA, GoneError, RefusedError, Wire

CHUNK = 1 << 18
FIRST_PAUSE, MAX_PAUSE = 0.005, 0.05
# Without new data, an empty message is sent this often, so that a lost client is noticed.
KEEPALIVE_SECONDS = 15.0
START_SECONDS, CANCEL_SECONDS, FORGET_SECONDS = 30.0, 30.0, 3.0
# How long to retry while the engine is stopped or restarts. The next job of the project removes what is left.
REMOVE_SECONDS, FIRST_REMOVE_PAUSE, MAX_REMOVE_PAUSE = 3600.0, 0.5, 30.0
KEPT = frozenset({run_folder.OUTPUTS, run_folder.LINKS, run_folder.SLOT, run_folder.STATE})


def start(wire: Wire, request: dict[str, Any]) -> None:
    """Start a job, unless an earlier call whose answer was lost has already started it."""
    with closing.accepting_jobs():
        wire.send_json(_start(request))


def _start(request: dict[str, Any]) -> dict[str, Any]:
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
            return {"started": state["started"], "again": True}
        if lock is not None:
            break
        if time.monotonic() > ends:
            raise RefusedError("busy", f"another call is starting run {run}")
        time.sleep(MAX_PAUSE)
    try:
        output_folders.check_held(run)
        supervisor = Supervisor(order, request.get("secrets", {}))
        return processes.run(supervisor.work, lock)
    finally:
        os.close(lock)


def frames(wire: Wire, request: dict[str, Any]) -> None:
    """Send the job's log from the given offset as it grows, then how the job ended."""
    run = request["run"]
    states.must_read(run)
    _send_log(wire, run, request["size"], lambda: states.check(run), lambda state: "ended" in state)


def container_frames(wire: Wire, request: dict[str, Any]) -> None:
    """Send the log of a container from the given offset, as long as a process records it."""
    run = request["run"]
    if not os.path.exists(states.path(run, run_folder.LOG)):
        wire.send_json({})
        return
    _send_log(wire, run, request["size"], lambda: {"recording": recorder.is_recording(run)}, _is_recorded)


def _is_recorded(state: dict[str, Any]) -> bool:
    return not state["recording"]


def _send_log(
    wire: Wire, run: str, offset: int, check: Callable[[], dict[str, Any]], is_over: Callable[[dict[str, Any]], bool]
) -> None:
    pause, sent = FIRST_PAUSE, time.monotonic()
    with _open_log(run) as file:
        file.seek(offset)
        while True:
            state = check()
            while True:
                data = file.read(CHUNK)
                if not data:
                    break
                wire.send(DATA, data)
                pause, sent = FIRST_PAUSE, time.monotonic()
            if is_over(state):
                break
            if time.monotonic() - sent > KEEPALIVE_SECONDS:
                wire.send(DATA, b"")
                sent = time.monotonic()
            wire.flush()
            _pause(pause)
            pause = min(2 * pause, MAX_PAUSE)
    wire.send_json(state)


def _open_log(run: str) -> Any:
    # A job that has just started may not have written it yet.
    return os.fdopen(os.open(states.path(run, run_folder.LOG), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600), "rb", 0)


def _pause(seconds: float) -> None:
    """Wait. Raise GoneError if the client disconnects."""
    if select.select([0], [], [], seconds)[0]:
        raise GoneError()


def state(wire: Wire, request: dict[str, Any]) -> None:
    """Send a job's state. Until its end is recorded, `ending` is why the machine stops it."""
    found = states.check(request["run"])
    ending = None if "ended" in found else states.read_stop_reason(request["run"])
    wire.send_json(dict(found, ending=ending) if ending else found)


def cancel(wire: Wire, request: dict[str, Any]) -> None:
    """Ask a job to end, kill it after the grace period, and send its final state."""
    wire.send_json(_cancel(request["run"], request["grace"]))


def _cancel(run: str, grace: float) -> dict[str, Any]:
    ends = time.monotonic() + grace + CANCEL_SECONDS
    found = states.check(run)
    if "ended" not in found:
        _request_stop(run, grace)
    while "ended" not in found:
        if time.monotonic() > ends:
            raise RefusedError("still-runs", f"the job of run {run} does not end")
        time.sleep(MAX_PAUSE)
        found = states.check(run)
    return found


def _request_stop(run: str, grace: float) -> None:
    # If no supervisor reads the request, the job's state says so.
    with contextlib.suppress(OSError):
        control = os.open(states.path(run, run_folder.CONTROL), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(control, f"{grace}\n".encode())
        finally:
            os.close(control)


def forget(wire: Wire, request: dict[str, Any]) -> None:
    """Stop a job if it still runs, and remove its files except its outputs and its state."""
    run = request["run"]
    found = states.read(run)
    if found is not None and found["kind"] == "process" and "ended" not in found:
        _cancel(run, 0.0)
    elif found is not None and "ended" not in found:
        # The client also removes the container, so its watcher has nothing more to record.
        states.write(run, dict(found, ended=time.time(), exitCode=None, how=run_folder.LOST))
    with contextlib.suppress(FileNotFoundError):
        for name in set(os.listdir(home.run_folder(run))) - KEPT:
            os.unlink(states.path(run, name))
    wire.send_json({})


def forget_run(wire: Wire, request: dict[str, Any]) -> None:
    """Remove a run with its outputs, and its container in the background. An absent run is not an error.

    A failed run stays while the machine is on for a look at it; the next upload to its copy of the project removes it.
    If the machine goes off after the run, the state stays: if the client is killed before it deallocates the machine,
    the guest agent still knows that the run is over.
    """
    run, found = request["run"], states.read(request["run"])
    if found is not None and _is_for_a_look(run):
        heartbeat.keep(run)
        wire.send_json({"left": None})
        return
    if request.get("container") and found is not None:
        _remove_container(found.get("docker") or ["docker"], request["container"])
    # The watcher of a container that was just removed needs a moment to notice.
    ends = time.monotonic() + FORGET_SECONDS
    while states.read(run) is not None and not states.is_over(run):
        if time.monotonic() > ends:
            if request.get("container"):
                break  # the engine does not answer, but the client knows that the job has ended
            raise RefusedError("still-runs", f"the job of run {run} has not ended")
        time.sleep(MAX_PAUSE)
    left = output_folders.release(run)
    if left is None and os.path.isdir(gone := remove(run)):
        left = gone
    wire.send_json({"left": left})


def _is_for_a_look(run: str) -> bool:
    """Return whether the machine stays on for a look at this run, because its job failed by itself."""
    seconds = (heartbeat.read(run) or {}).get("keepOnFailure")
    if not isinstance(seconds, (int, float)) or not heartbeat.ends_machine(run):
        return False
    # The client may know the end of a container before its watcher does.
    ends = time.monotonic() + FORGET_SECONDS
    while not (state := states.read(run) or {}).get("ended") and time.monotonic() < ends:
        time.sleep(MAX_PAUSE)
    return run_folder.failed_by_itself(state) and time.time() - state.get("ended", 0.0) < seconds


def remove(run: str) -> str:
    """Remove the folder of a finished run. Return the path where files that cannot be removed remain."""
    gone, kept = home.named(run_folder.RUNS, f".gone-{run}"), _state_to_keep(run)
    with contextlib.suppress(FileNotFoundError, OSError):
        # In one step, so that a reader never finds an incomplete state.
        os.rename(home.run_folder(run), gone)
        if kept:
            os.mkdir(home.run_folder(run))
            states.write(run, kept)
            os.rename(os.path.join(gone, run_folder.HEARTBEAT), states.path(run, run_folder.HEARTBEAT))
    remove_tree(gone)
    return gone


def _state_to_keep(run: str) -> dict[str, Any] | None:
    """Return the state to keep for the guest agent if the machine goes off after the run, else None."""
    if not heartbeat.ends_machine(run):
        return None
    return {
        "kind": "process",
        "ended": time.time(),
        "exitCode": None,
        "how": run_folder.LOST,
        **(states.read(run) or {}),
    }


def _remove_container(docker: list[str], container: str) -> None:
    """Remove a container in the background, as soon as its engine answers."""

    def work(report: Callable[[dict[str, Any]], None]) -> None:
        report({})
        pause, ends = FIRST_REMOVE_PAUSE, time.monotonic() + REMOVE_SECONDS
        while not _is_removed(docker, container) and time.monotonic() < ends:
            time.sleep(pause)
            pause = min(2 * pause, MAX_REMOVE_PAUSE)

    with contextlib.suppress(OSError):
        processes.run(work, 0)


def _is_removed(docker: list[str], container: str) -> bool:
    import subprocess  # slow to import, and few calls need it

    command = [*docker, "rm", "--force", "--volumes", container]
    null = subprocess.DEVNULL
    try:
        done = subprocess.run(  # noqa: S603 the engine's own program
            command, stdin=null, stdout=null, stderr=subprocess.PIPE, timeout=states.DOCKER_SECONDS, check=False
        )
    except FileNotFoundError:
        return True  # Docker is not installed
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 or b"no such container" in done.stderr.lower()


def runs(wire: Wire, request: dict[str, Any]) -> None:
    """Send every run of this machine, from any workspace: whether it is over, and whether it has outputs.

    With `close`, refuse new jobs if no run is active and all outputs were fetched.
    """
    is_closed = bool(request.get("close")) and closing.close_if(lambda: all(map(_is_done, _list_runs())))
    wire.send_json({"runs": _list_runs(), "closed": is_closed})


def _is_done(run: dict[str, Any]) -> bool:
    return run["over"] and not run["outputs"]


def _list_runs() -> list[dict[str, Any]]:
    found = []
    with contextlib.suppress(FileNotFoundError):
        for run in sorted(each for each in os.listdir(home.named(run_folder.RUNS)) if not each.startswith(".")):
            is_over = states.is_over(run) or states.is_deserted(run)
            has_outputs = output_folders.has_outputs(run) and not heartbeat.is_kept(run)
            found.append({"run": run, "over": is_over, "outputs": has_outputs})
    return found


def keep_run(wire: Wire, request: dict[str, Any]) -> None:
    """Keep a run whose job has not started yet, while its client prepares the environment."""
    with contextlib.suppress(FileNotFoundError):
        os.utime(home.run_folder(request["run"]))
    wire.send_json({})
