"""The folder of a run on its machine, `~/.gpuinfra/runs/ID`: its files, and the reasons why a job ends.

The code on the machine, the guest agent and the runner all use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# `ROOT` is in the user's home, and `RUNS` in `ROOT`.
ROOT, RUNS = ".gpuinfra", "runs"
# JSON: the job's state, or how it ended.
STATE = "state.json"
# Reserves disk space for the next state.
SPARE = "state.spare"
# Locked by the process that watches the job.
ALIVE = "alive"
# JSON: the client's last heartbeat. The file's modification time is when it arrived.
HEARTBEAT = "attended.json"
# JSON: why the machine stops the job. The guest agent writes it before it stops the job.
STOP_REASON = "ending.json"
# The job's output. For a container, the process that records it locks `RECORDER`, which names the container.
LOG, RECORDER = "log", "recorder"
# For a job without a container: the pipe that takes requests to stop it.
CONTROL = "control"
# One line per sample of a GPU.
SAMPLES = "samples"
OUTPUTS = "outputs"
# The links with which a job replaced folders for outputs.
LINKS = "links"
# The slot with the run's copy of the project, in which it writes its outputs.
SLOT = "slot"

# Why a job ended.
EXITED, TIMED_OUT, CANCELLED, LOST = "exited", "timed out", "cancelled", "lost"
OUT_OF_MEMORY, ENGINE_STOPPED = "out of memory", "the engine was stopped"
EVICTED, LEASE_OVER, IDLE, COST_CAP = "evicted", "lease over", "idle", "cost cap"
# The reasons for which the guest agent stops a job before it deallocates the machine.
BY_MACHINE = frozenset({EVICTED, LEASE_OVER, IDLE, COST_CAP})

# The values of `afterRun` in a heartbeat that turn the machine off after the run; other values leave it on.
ENDS = ("deallocate", "delete")


# The exit codes of a container that was stopped from outside: the engine does not say by which program.
STOPPED = (137, 143)


def failed_by_itself(state: Mapping[str, Any]) -> bool:
    """Return whether the job with this state ended by itself, with an exit code other than 0."""
    code, how = state.get("exitCode"), state.get("how")
    if not isinstance(code, int) or code == 0:
        return False
    is_stopped = state.get("kind") == "container" and code in STOPPED
    return how == OUT_OF_MEMORY or (how == EXITED and not is_stopped)


def container_name(run: str) -> str:
    """Return the name of a run's container."""
    return f"gpuinfra-{run}"
