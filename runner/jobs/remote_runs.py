"""What the target knows about runs, and the watcher that it keeps on a container: it stops the job in time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpuinfra.models.run import GpuUsage
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.errors import JobError, job_errors
from gpuinfra.runner.jobs.job import Ended, StopReason

ANSWER_SECONDS = 90.0


def start_watch(
    remote: RemoteClient, run: str, container: str, *, timeout: float | None, grace: float = 10.0, gpu: bool = False
) -> None:
    """Start a watcher on the target that stays with the container until it ends. A second one is not started; if the
    last one was lost, as by a restart of the machine, this one takes over."""
    with job_errors("the target cannot keep watch on the job"):
        remote.ask("watch", run=run, container=container, timeout=timeout, grace=grace, gpu=gpu, seconds=ANSWER_SECONDS)


def read_state(remote: RemoteClient, run: str) -> dict[str, Any]:
    """What the target knows of a run's job; `alive` is whether it is watched. JobError if there is none."""
    with job_errors("the job's state cannot be read"):
        return remote.ask("job-state", run=run)


def count_of(state: dict[str, Any], name: str) -> int:
    """Return a number that the state may have, or 0."""
    found = state.get(name, 0)
    if type(found) is not int or found < 0:
        raise JobError("the target's answer makes no sense", f"`{name}` in the state of a job is not a count")
    return found


def read_usage(remote: RemoteClient, run: str) -> GpuUsage | None:
    """Return how its GPUs were used; None without samples."""
    with job_errors("the samples of the GPU cannot be read"):
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
        raise JobError("the target's answer makes no sense", f"samples of the GPU: {error}") from error
    return usage if usage.samples else None


def keep_run(remote: RemoteClient, run: str) -> None:
    """Say that a run whose job has not begun yet is still wanted: an environment may take longer to make than a run is
    waited for."""
    with job_errors("the target did not learn that the run continues"):
        remote.ask("run-keep", run=run)


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """A run that the target knows, from any workspace."""

    run: str
    is_over: bool
    has_outputs: bool


def runs_there(remote: RemoteClient) -> list[RemoteRun]:
    """All that are on the target, those of other workspaces too."""
    with job_errors("the target cannot be asked for its runs"):
        found = remote.ask("runs", seconds=ANSWER_SECONDS)["runs"]
    try:
        return [RemoteRun(str(each["run"]), bool(each["over"]), bool(each["outputs"])) for each in found]
    except (KeyError, TypeError) as error:
        raise JobError("the target's answer makes no sense", f"the list of runs: {error}") from error


def forget_run(remote: RemoteClient, run: str, container: str | None = None) -> str | None:
    """Remove everything of a run from the target, its outputs too: for when they are here. Absent is done.

    Its container is removed in the background, and not waited for. Gives the folder of what the user there may not
    remove, if there is such.
    """
    with job_errors("the run cannot be removed from the target"):
        left = remote.ask("run-forget", run=run, container=container, seconds=ANSWER_SECONDS).get("left")
    return str(left) if left else None


UNKNOWN_EXIT_CODE = 255


def ended_of(state: dict[str, Any]) -> Ended | None:
    """How a job ended, of what the target knows of it, with or without a container; None while it runs."""
    if "ended" not in state:
        return None
    code = state.get("exitCode")
    try:
        return Ended(
            exit_code=UNKNOWN_EXIT_CODE if code is None else int(code),
            how=StopReason(state.get("how", StopReason.EXITED)),
            at=datetime.fromtimestamp(state["ended"], UTC),
            detail=str(state.get("detail", "")),
            started=datetime.fromtimestamp(state["started"], UTC) if "started" in state else None,
        )
    except (ValueError, TypeError, OverflowError, OSError) as error:
        raise JobError("the target's answer makes no sense", f"how a job ended: {error}") from error
