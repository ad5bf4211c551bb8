"""A job that is a process on the target, without a container; a supervisor there stays with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpuinfra.remote.wire import JSON
from gpuinfra.runner.connection.remote_client import RemoteClient
from gpuinfra.runner.errors import JobError, job_errors
from gpuinfra.runner.job_spec import Gpus, StartRequest
from gpuinfra.runner.jobs.job import Ended, Frame, Position
from gpuinfra.runner.jobs.log import FrameReader
from gpuinfra.runner.jobs.remote_runs import ended_of

# The default time between asking a job to end and killing it.
GRACE_SECONDS = 10.0
# The remote side says something at least every 15 s.
SILENCE_SECONDS = 60.0
ANSWER_SECONDS = 90.0


def start_process(remote: RemoteClient, request: StartRequest, *, grace: float = GRACE_SECONDS) -> ProcessJob:
    """Begin it; returns when it runs. To ask again for the same run, after a broken connection, begins no second."""
    order = {
        "run": request.run,
        "command": list(request.command),
        "folder": request.folder,
        "environment": request.environment,
        "gpus": _gpus(request.gpus),
        "timeout": request.timeout,
        "grace": grace,
    }
    with job_errors("the job cannot be begun"):
        remote.ask("job-start", order=order, secrets=request.secrets, seconds=ANSWER_SECONDS)
    return ProcessJob(remote, request.run)


class ProcessJob:
    """One that was begun, by the run's id. Implements `Job`."""

    def __init__(self, remote: RemoteClient, run: str) -> None:
        self._remote, self._run = remote, run

    def frames(self, after: Position) -> Iterator[Frame]:
        """What it prints from there on, in order, as it prints it."""
        reader = FrameReader()
        request = {"run": self._run, "size": after.size}
        with (
            job_errors("the job's log cannot be read"),
            self._remote.call("job-frames", request, idle=SILENCE_SECONDS) as call,
        ):
            while True:
                kind, data = call.receive()
                if kind == JSON:
                    return
                try:
                    yield from reader.add(data)
                except ValueError as error:
                    raise JobError("the job's log on the target is damaged", str(error)) from error

    def ended(self) -> Ended | None:
        """How it ended; None while it runs."""
        return ended_of(self.state())

    def state(self) -> dict[str, Any]:
        """All that the target knows of it."""
        with job_errors("the job's state cannot be read"):
            return self._remote.ask("job-state", run=self._run)

    def cancel(self, grace: float) -> None:
        """Ask it to end, and kill it after the grace period."""
        with job_errors("the job cannot be ended"):
            self._remote.ask("job-cancel", run=self._run, grace=grace, seconds=grace + ANSWER_SECONDS)

    def remove(self) -> None:
        """Forget it on the target, but for its outputs."""
        with job_errors("the job cannot be forgotten"):
            self._remote.ask("job-forget", run=self._run, seconds=ANSWER_SECONDS)


def _gpus(gpus: Gpus | None) -> dict[str, Any] | None:
    return None if gpus is None else {"count": gpus.count, "ids": list(gpus.ids)}
