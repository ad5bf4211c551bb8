"""Keeping watch on a job in a container, from the target itself: it is timed out and measured whoever is connected."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpuinfra.models.run import GpuUsage
from gpuinfra.runner.jobs.port import JobError
from gpuinfra.runner.jobs.refusals import translated
from gpuinfra.runner.machine.remote_client import RemoteClient

ANSWER_SECONDS = 90.0


def start_watch(
    remote: RemoteClient, run: str, container: str, *, timeout: float | None, grace: float = 10.0, gpu: bool = False
) -> None:
    """Have somebody on the target stay with it until it ends. One who does so already, or a job that is over, is left
    as it is; where the last one was lost, as by a restart of the machine, another takes over."""
    with translated("the target cannot keep watch on the job"):
        remote.ask("watch", run=run, container=container, timeout=timeout, grace=grace, gpu=gpu, seconds=ANSWER_SECONDS)


def read_state(remote: RemoteClient, run: str) -> dict[str, Any]:
    """What the target knows of a run's job; `alive` is whether somebody stays with it. JobError where there is none."""
    with translated("the job's state cannot be read"):
        return remote.ask("job-state", run=run)


def read_usage(remote: RemoteClient, run: str) -> GpuUsage | None:
    """How its GPUs were used; None where nobody has seen them."""
    with translated("the samples of the GPU cannot be read"):
        found = remote.ask("usage", run=run)
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
    with translated("the target cannot be told that the run goes on"):
        remote.ask("run-keep", run=run)


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """A run that the target knows, whoever sent it."""

    run: str
    is_over: bool
    has_outputs: bool


def runs_there(remote: RemoteClient) -> list[RemoteRun]:
    """All that are on the target, those of other workspaces too."""
    with translated("the target cannot be asked for its runs"):
        found = remote.ask("runs", seconds=ANSWER_SECONDS)["runs"]
    return [RemoteRun(str(each["run"]), bool(each["over"]), bool(each["outputs"])) for each in found]


def forget_run(remote: RemoteClient, run: str, container: str | None = None) -> str | None:
    """Remove everything of a run from the target, its outputs too: for when they are here. Absent is done.

    Its container is removed in the background, and not waited for. Gives the folder of what the user there may not
    remove, if there is such.
    """
    with translated("the run cannot be removed from the target"):
        left = remote.ask("run-forget", run=run, container=container, seconds=ANSWER_SECONDS).get("left")
    return str(left) if left else None
