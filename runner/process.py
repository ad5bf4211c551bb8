"""A job that runs as a process on the target, without a container, watched by a supervisor on the target."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuinfra.models.run import Frame
from gpuinfra.remote.wire import JSON
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.errors import JobError, job_errors
from gpuinfra.runner.job import JobEnd, Position
from gpuinfra.runner.job_spec import Gpus, StartRequest
from gpuinfra.runner.log import FrameReader
from gpuinfra.runner.remote_runs import parse_job_end, read_state

# The default time between asking a job to end and killing it.
GRACE_SECONDS = 10.0
# The target sends a message at least every 15 s.
SILENCE_SECONDS = 60.0
ANSWER_SECONDS = 90.0


def start_process(remote: RemoteClient, request: StartRequest, *, grace: float = GRACE_SECONDS) -> ProcessJob:
    """Start the job and return when it runs. A repeated call for the same run does not start it again."""
    order = {
        "run": request.run,
        "command": list(request.command),
        "folder": request.folder,
        "environment": request.environment,
        "gpus": _gpus(request.gpus),
        "timeout": request.timeout,
        "grace": grace,
        "environmentFolder": request.environment_folder,
    }
    with job_errors("the job cannot be started"):
        remote.ask("job-start", order=order, secrets=request.secrets, seconds=ANSWER_SECONDS)
    return ProcessJob(remote, request.run)


def read_frames(remote: RemoteClient, verb: str, run: str, size: int) -> Iterator[Frame]:
    """Yield the frames of the target's log after this many bytes, until the target says that there are no more."""
    reader = FrameReader()
    with (
        job_errors("the job's log cannot be read"),
        remote.call(verb, {"run": run, "size": size}, idle=SILENCE_SECONDS) as call,
    ):
        while True:
            kind, data = call.receive()
            if kind == JSON:
                return
            try:
                yield from reader.add(data)
            except ValueError as error:
                raise JobError("the job's log on the target is damaged", str(error)) from error


class ProcessJob:
    """A started process, by the id of its run. Implements `Job`."""

    def __init__(self, remote: RemoteClient, run: str) -> None:
        self._remote, self.id = remote, run

    def frames(self, after: Position) -> Iterator[Frame]:
        return read_frames(self._remote, "job-frames", self.id, after.size)

    def ended(self) -> JobEnd | None:
        return parse_job_end(read_state(self._remote, self.id))

    def cancel(self, grace: float) -> None:
        with job_errors("the job cannot be stopped"):
            self._remote.ask("job-cancel", run=self.id, grace=grace, seconds=grace + ANSWER_SECONDS)

    def remove(self) -> None:
        with job_errors("the job cannot be removed from the target"):
            self._remote.ask("job-forget", run=self.id, seconds=ANSWER_SECONDS)


def _gpus(gpus: Gpus | None) -> dict[str, Any] | None:
    return None if gpus is None else {"count": gpus.count, "ids": list(gpus.ids)}
