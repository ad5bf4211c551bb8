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

from gpuinfra.remote import files, home, run_folder, samples, states
from gpuinfra.remote.wire import Wire

TRANSFER_SECONDS = 5.0


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
            "gpuBusy": samples.busy_ago(states.path(run, run_folder.SAMPLES)),
        }
    )


def record(run: str, request: dict[str, Any]) -> None:
    """Record that a client is connected. Without `afterRun` in the request, the recorded value stays."""
    before = read(run)
    found: dict[str, Any] = {"afterRun": request.get("afterRun", (before or {}).get("afterRun"))}
    if request.get("detached"):
        found["detached"] = True
    # A full disk or a run that is being removed is not a failure: the next heartbeat follows soon.
    with contextlib.suppress(OSError):
        if found == before:
            os.utime(states.path(run, run_folder.HEARTBEAT))
            return
        files.replace(states.path(run, run_folder.HEARTBEAT), json.dumps(found))


def read(run: str) -> dict[str, Any] | None:
    """Return the last heartbeat, or None if there was none."""
    return files.read_object(states.path(run, run_folder.HEARTBEAT))


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
