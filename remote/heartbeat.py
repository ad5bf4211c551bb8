"""Who is there for a run: a client says so every few seconds, and hears how the job is.

`attended.json` is what it says; the file's own time is when it last did. The guest agent reads both, and decides by
them when a machine that was wanted for one run alone is wanted no more.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from typing import Any

from gpuinfra.remote import home, samples, states, stop_reason
from gpuinfra.remote.wire import Wire

ATTENDED = "attended.json"
# What becomes of the machine where it is wanted for the run alone; `keep` and nothing leave it on.
ENDS = ("deallocate", "delete")
PRESENT_SECONDS = 5.0


def attend(wire: Wire, request: dict[str, Any]) -> None:
    """Somebody is there. What is known of the job, and how long ago its GPU worked.

    A run of which nothing is here stays so: its client comes late, and the run was forgotten meanwhile.
    """
    run = request["run"]
    if os.path.isdir(home.run_folder(run)):
        note(run, request)
    wire.send_json(
        {
            "now": time.time(),
            "state": states.read(run),
            "ending": stop_reason.read(run),
            "gpuBusy": samples.busy_ago(states.path(run, samples.SAMPLES)),
        }
    )


def note(run: str, said: dict[str, Any]) -> None:
    """Write down that somebody is there. What is not said of `afterRun` stays; whoever is there is not detached."""
    before = read(run)
    found: dict[str, Any] = {"afterRun": said.get("afterRun", (before or {}).get("afterRun"))}
    if said.get("detached"):
        found["detached"] = True
    # A disk that is full, or a run that is being removed, is no reason to fail: it is said again in a moment.
    with contextlib.suppress(OSError):
        if found == before:
            os.utime(states.path(run, ATTENDED))
            return
        new = states.path(run, ATTENDED + ".new")
        with open(new, "w") as file:
            file.write(json.dumps(found))
        os.replace(new, states.path(run, ATTENDED))


def read(run: str) -> dict[str, Any] | None:
    """What was said last; None where nobody has said anything."""
    try:
        with open(states.path(run, ATTENDED), "rb") as file:
            found = json.loads(file.read())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


class Presence:
    """Whoever sends much, or takes it, is there: on a slow line nothing else of theirs gets through in time."""

    def __init__(self, run: str) -> None:
        self._run, self._last = run, time.monotonic()

    def __call__(self) -> None:
        """Some of it has got through. To be called often is no burden."""
        now = time.monotonic()
        if now - self._last > PRESENT_SECONDS:
            self._last = now
            with contextlib.suppress(OSError):  # nobody has ever said that they are
                os.utime(states.path(self._run, ATTENDED))


def ends_the_machine(run: str) -> bool:
    """Whether the machine is to end with the run."""
    return (read(run) or {}).get("afterRun") in ENDS


VERBS: dict[str, Callable[..., None]] = {"run-attend": attend}
