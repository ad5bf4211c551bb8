"""Heartbeats of clients: every few seconds a client says that it is there, and learns how the job is.

`attended.json` has what it says; the file's own time is when it last did. The guest agent reads both, and decides by
them when a machine that was wanted for one run alone is wanted no more.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from typing import Any

from gpuinfra.remote import home, run_folder, samples, states
from gpuinfra.remote.wire import Wire

PRESENT_SECONDS = 5.0


def attend(wire: Wire, request: dict[str, Any]) -> None:
    """Record a heartbeat. Answer what is known of the job, and how long ago its GPU worked.

    A run of which nothing is here stays so: its client comes late, and the run was forgotten meanwhile.
    """
    run = request["run"]
    if os.path.isdir(home.run_folder(run)):
        note(run, request)
    wire.send_json(
        {
            "now": time.time(),
            "state": states.read(run),
            "ending": states.read_stop_reason(run),
            "gpuBusy": samples.busy_ago(states.path(run, run_folder.SAMPLES)),
        }
    )


def note(run: str, said: dict[str, Any]) -> None:
    """Record that a client is there, and so not detached. Without `afterRun`, the recorded one stays."""
    before = read(run)
    found: dict[str, Any] = {"afterRun": said.get("afterRun", (before or {}).get("afterRun"))}
    if said.get("detached"):
        found["detached"] = True
    # A full disk, or a run that is being removed, is not a failure: the next heartbeat follows soon.
    with contextlib.suppress(OSError):
        if found == before:
            os.utime(states.path(run, run_folder.HEARTBEAT))
            return
        new = states.path(run, run_folder.HEARTBEAT + ".new")
        with open(new, "w") as file:
            file.write(json.dumps(found))
        os.replace(new, states.path(run, run_folder.HEARTBEAT))


def read(run: str) -> dict[str, Any] | None:
    """Return the last heartbeat, or None if there was none."""
    try:
        with open(states.path(run, run_folder.HEARTBEAT), "rb") as file:
            found = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


class Presence:
    """Counts a transfer as a heartbeat: on a slow line, heartbeats come too late."""

    def __init__(self, run: str) -> None:
        self._run, self._last = run, time.monotonic()

    def __call__(self) -> None:
        """Report progress of the transfer. Cheap to call often."""
        now = time.monotonic()
        if now - self._last > PRESENT_SECONDS:
            self._last = now
            with contextlib.suppress(OSError):  # there was no heartbeat yet
                os.utime(states.path(self._run, run_folder.HEARTBEAT))


def ends_the_machine(run: str) -> bool:
    """Whether the machine is to end with the run."""
    return (read(run) or {}).get("afterRun") in run_folder.ENDS


VERBS: dict[str, Callable[..., None]] = {"run-attend": attend}
