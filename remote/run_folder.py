"""The folder of a run on its machine, `~/.gpuinfra/runs/ID`: its files, and the words for why a job ended.

The code on the machine, the guest agent and the runner all use them.
"""

from __future__ import annotations

# In the user's home; the folders of runs are in `RUNS` in it.
ROOT, RUNS = ".gpuinfra", "runs"
# JSON: how the job is, or how it ended.
STATE = "state.json"
# Space that is reserved for the next state.
SPARE = "state.spare"
# Locked by the process that watches the job.
ALIVE = "alive"
# JSON: the client's last heartbeat. The file's own time is when it came.
HEARTBEAT = "attended.json"
# JSON: why the machine stops the job. The guest agent writes it just before it does.
STOP_REASON = "ending.json"
# Of a job without a container: what it prints, and the pipe that takes requests to stop it.
LOG, CONTROL = "log", "control"
# A line for each sample of a GPU.
SAMPLES = "samples"
OUTPUTS = "outputs"

# Why a job ended.
EXITED, TIMED_OUT, CANCELLED, LOST = "exited", "timed out", "cancelled", "lost"
OUT_OF_MEMORY, ENGINE_STOPPED = "out of memory", "the engine was stopped"
EVICTED, LEASE_OVER, IDLE, COST_CAP = "evicted", "lease over", "idle", "cost cap"
# Those for which the machine stops a job before it goes off.
BY_MACHINE = frozenset({EVICTED, LEASE_OVER, IDLE, COST_CAP})

# The values of `afterRun` in a heartbeat with which the machine goes off after the run; others leave it on.
ENDS = ("deallocate", "delete")


def container_name(run: str) -> str:
    """Return the name of a run's container."""
    return f"gpuinfra-{run}"
