"""Client heartbeats: every few seconds, a client reports that it is connected and receives the job's state.

`attended.json` holds the last heartbeat's content, and the file's modification time is when it arrived. The guest agent
reads both to decide when the machine is no longer needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

from gpuinfra.remote import home, run_folder, samples, states
from gpuinfra.remote.wire import Wire

TRANSFER_SECONDS = 5.0
# Whether the run was fetched completely, and stays on the machine for a look at its failed job.
KEPT = "kept"


def answer_heartbeat(wire: Wire, request: dict[str, Any]) -> None:
    """Record a heartbeat. Send the job's state, and how long ago a GPU was last busy.

    If the run's folder was removed, a late heartbeat does not create it again.
    """
    run = request["run"]
    if os.path.isdir(home.run_folder(run)):
        record(run, request)
    wire.send_json(
        {
            "now": time.time(),
            "state": states.read(run),
            "ending": states.read_stop_reason(run),
            "gpu": samples.latest(states.path(run, run_folder.SAMPLES)),
            "gpuBusy": samples.busy_ago(states.path(run, run_folder.SAMPLES)),
        }
    )


def record(run: str, request: dict[str, Any]) -> None:
    """Record that a client is connected. What a request lacks keeps its recorded value."""
    before = read(run)
    found: dict[str, Any] = {"afterRun": request.get("afterRun", (before or {}).get("afterRun"))}
    for name in ("keepOnFailure", KEPT):
        if value := request.get(name, (before or {}).get(name)):
            found[name] = value
    if request.get("detached"):
        found["detached"] = True
    # A full disk or a run that is being removed is not a failure: the next heartbeat follows soon.
    with contextlib.suppress(OSError):
        if found == before:
            os.utime(states.path(run, run_folder.HEARTBEAT))
            return
        home.replace(states.path(run, run_folder.HEARTBEAT), json.dumps(found))


def read(run: str) -> dict[str, Any] | None:
    """Return the last heartbeat, or None if there was none."""
    return home.read_object(states.path(run, run_folder.HEARTBEAT))


def keep(run: str) -> None:
    """Record that the run was fetched completely, and stays for a look. This is not a heartbeat of its client."""
    file = states.path(run, run_folder.HEARTBEAT)
    with contextlib.suppress(OSError):
        found = os.stat(file)
        home.replace(file, json.dumps({**(read(run) or {}), KEPT: True}))
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))


def is_kept(run: str) -> bool:
    """Return whether the run was fetched completely, and is only kept for a look at its failed job."""
    return (read(run) or {}).get(KEPT) is True


class TransferHeartbeat:
    """Counts a file transfer as a heartbeat, because on a slow connection the heartbeats are delayed."""

    def __init__(self, run: str) -> None:
        self._run, self._last = run, time.monotonic()

    def __call__(self) -> None:
        """Report progress of the transfer. It is cheap to call often."""
        now = time.monotonic()
        if now - self._last > TRANSFER_SECONDS:
            self._last = now
            with contextlib.suppress(OSError):  # there was no heartbeat before
                os.utime(states.path(self._run, run_folder.HEARTBEAT))


def ends_machine(run: str) -> bool:
    """Return whether the machine goes off after the run."""
    return (read(run) or {}).get("afterRun") in run_folder.ENDS
