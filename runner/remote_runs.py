"""Query the target about runs, and start the watcher of a container, which enforces the job's time limit."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

from gpuinfra.models.consent import MachineRun, MachineRuns
from gpuinfra.models.run import GpuUsage
from gpuinfra.remote.closing import SECONDS as CLOSED_SECONDS
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.errors import JobError, job_errors
from gpuinfra.runner.job import JobEnd, StopReason

ANSWER_SECONDS = 90.0
UNKNOWN_EXIT_CODE = 255
UNEXPECTED_REPLY = "unexpected reply from the target"


def start_recorder(remote: RemoteClient, run: str, container: str) -> None:
    """Record on the target what a created container prints, from its start. Does nothing if it is recorded already."""
    with job_errors("the target cannot record the job's output"):
        remote.ask("record", run=run, container=container, seconds=ANSWER_SECONDS)


def start_watcher(
    remote: RemoteClient, run: str, container: str, *, timeout: float | None, grace: float = 10.0, gpu: bool = False
) -> None:
    """Start a watcher on the target for a container, until the container ends. Does nothing if one runs already."""
    with job_errors("the target cannot watch the job"):
        remote.ask("watch", run=run, container=container, timeout=timeout, grace=grace, gpu=gpu, seconds=ANSWER_SECONDS)


def read_state(remote: RemoteClient, run: str) -> dict[str, Any]:
    """Return the state of a run's job on the target, or raise JobError if there is none."""
    with job_errors("the job's state cannot be read"):
        return remote.ask("job-state", run=run)


def count_of(state: dict[str, Any], name: str) -> int:
    """Return a count in the state of a job, or 0 if it has none."""
    found = state.get(name, 0)
    if type(found) is not int or found < 0:
        raise JobError(UNEXPECTED_REPLY, f"`{name}` in the state of a job is not a count")
    return found


def read_usage(remote: RemoteClient, run: str) -> GpuUsage | None:
    """Return how the run used its GPUs, or None if there are no samples."""
    with job_errors("the GPU usage cannot be read"):
        found = dict(remote.ask("usage", run=run))
    try:
        usage = GpuUsage(
            samples=int(found["samples"]),
            seconds=float(found["seconds"]),
            peak_utilization=int(found["peakUtilization"]),
            mean_utilization=float(found["meanUtilization"]),
            peak_memory_mib=None if found["peakMemoryMib"] is None else int(found["peakMemoryMib"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise JobError(UNEXPECTED_REPLY, f"GPU usage: {error}") from error
    return usage if usage.samples else None


def keep_run(remote: RemoteClient, run: str) -> None:
    """Keep the target from removing the upload of a run whose job has not started yet."""
    with job_errors("the upload cannot be kept on the target"):
        remote.ask("run-keep", run=run)


def list_runs(remote: RemoteClient, *, close: bool = False) -> MachineRuns:
    """Return all runs that the target knows, from any workspace.

    With `close`, the target refuses new jobs for five minutes if no run is active and all outputs were fetched.
    """
    with job_errors("the runs on the target cannot be listed"):
        closed_until = time.time() + CLOSED_SECONDS
        answer = remote.ask("runs", close=close, seconds=ANSWER_SECONDS)
        found, is_closed = answer["runs"], close and answer["closed"] is True
    try:
        runs = [MachineRun(str(each["run"]), bool(each["over"]), bool(each["outputs"])) for each in found]
        return MachineRuns(tuple(runs), closed_until if is_closed else 0.0)
    except (KeyError, TypeError) as error:
        raise JobError(UNEXPECTED_REPLY, f"list of runs: {error}") from error


def forget_run(remote: RemoteClient, run: str, container: str | None = None) -> str | None:
    """Delete a run and its outputs on the target; an absent run is a success.

    The container is removed in the background. Return the folder with files that the user may not delete, or None.
    """
    with job_errors("the run cannot be removed from the target"):
        left = remote.ask("run-forget", run=run, container=container, seconds=ANSWER_SECONDS).get("left")
    return str(left) if left else None


def parse_job_end(state: dict[str, Any]) -> JobEnd | None:
    """Return how a job ended according to its state on the target, or None while it runs."""
    if "ended" not in state:
        return None
    code = state.get("exitCode")
    try:
        return JobEnd(
            exit_code=UNKNOWN_EXIT_CODE if code is None else int(code),
            stop_reason=StopReason(state.get("how", StopReason.EXITED)),
            at=datetime.fromtimestamp(state["ended"], UTC),
            detail=str(state.get("detail", "")),
            started=datetime.fromtimestamp(state["started"], UTC) if "started" in state else None,
        )
    except (ValueError, TypeError, OverflowError, OSError) as error:
        raise JobError(UNEXPECTED_REPLY, f"end of a job: {error}") from error
