"""A job that is a process of its own on the target, without a container; somebody there stays with it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from gpuinfra.remote.wire import JSON
from gpuinfra.runner.jobs.log import FrameReader
from gpuinfra.runner.jobs.order import Gpus, Order
from gpuinfra.runner.jobs.port import Ended, Frame, JobError, Position, StopReason
from gpuinfra.runner.jobs.refusals import translated
from gpuinfra.runner.machine.remote_client import RemoteClient

# From asking it to end to making it, where nobody says otherwise.
GRACE_SECONDS = 10.0
# The remote side says something at least every 15 s.
SILENCE_SECONDS = 60.0
ANSWER_SECONDS = 90.0
UNKNOWN_EXIT_CODE = 255


def start_process(remote: RemoteClient, order: Order, *, grace: float = GRACE_SECONDS) -> ProcessJob:
    """Begin it; returns when it runs. To ask again for the same run, after a broken connection, begins no second."""
    request = {
        "run": order.run,
        "command": list(order.command),
        "folder": order.folder,
        "environment": order.environment,
        "gpus": _gpus(order.gpus),
        "timeout": order.timeout,
        "grace": grace,
    }
    with translated("the job cannot be begun"):
        remote.ask("job-start", order=request, secrets=order.secrets, seconds=ANSWER_SECONDS)
    return ProcessJob(remote, order.run)


class ProcessJob:
    """One that was begun, by the run's id. Implements `Job`."""

    def __init__(self, remote: RemoteClient, run: str) -> None:
        self._remote, self._run = remote, run

    def frames(self, after: Position) -> Iterator[Frame]:
        """What it prints from there on, in order, as it prints it."""
        reader = FrameReader()
        request = {"run": self._run, "size": after.size}
        with (
            translated("the job's log cannot be read"),
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
        with translated("the job's state cannot be read"):
            return self._remote.ask("job-state", run=self._run)

    def cancel(self, grace: float) -> None:
        """Ask it to end, and after so many seconds make it."""
        with translated("the job cannot be ended"):
            self._remote.ask("job-cancel", run=self._run, grace=grace, seconds=grace + ANSWER_SECONDS)

    def remove(self) -> None:
        """Forget it on the target, but for its outputs."""
        with translated("the job cannot be forgotten"):
            self._remote.ask("job-forget", run=self._run, seconds=ANSWER_SECONDS)


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
        )
    except (ValueError, TypeError, OverflowError, OSError) as error:
        raise JobError("the target's answer makes no sense", f"how a job ended: {error}") from error


def _gpus(gpus: Gpus | None) -> dict[str, Any] | None:
    return None if gpus is None else {"count": gpus.count, "ids": list(gpus.ids)}
