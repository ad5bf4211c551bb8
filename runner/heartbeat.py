"""Heartbeats for a run: every few seconds the target learns that a client is there, and replies with the job's state.

A machine that exists for one run goes off when heartbeats stop: see `remote.heartbeat`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, Self

from gpuinfra.models.run import Frame, GpuSample
from gpuinfra.runner.connection.port import Connection
from gpuinfra.runner.errors import ConnectError, JobError, RemoteError
from gpuinfra.runner.job import JobEnd, StopReason
from gpuinfra.runner.link import Link
from gpuinfra.runner.progress import in_thread
from gpuinfra.runner.remote_runs import UNKNOWN_EXIT_CODE, parse_job_end

# A child of the program's logger, so that `--verbose` shows it.
logger = logging.getLogger(__name__)
# After 45 s without a heartbeat, the target considers the client gone.
PERIOD_SECONDS = 5.0
ANSWER_SECONDS = 20.0
DETACH_SECONDS = 5.0
# A machine that does not answer for this long is reported as silent.
SILENT_SECONDS = 8.0
CHECK_SECONDS = 0.5
# After a sleep of this computer for this long, the connection is opened again.
SLEPT_SECONDS = 10.0


class _Unanswered(NamedTuple):
    """A connection with heartbeats that have no answer yet."""

    connection: Connection
    since: float

    @property
    def silent_seconds(self) -> float:
        return time.monotonic() - max(self.since, self.connection.last_received_at)


def first_heartbeat(
    after_run: str | None, *, detached: bool = False, keep_on_failure: float | None = None
) -> dict[str, Any]:
    """Return the fields of a run's first heartbeat: what happens to the machine afterwards, and if it is detached."""
    look = {"keepOnFailure": keep_on_failure} if keep_on_failure else {}
    return {"afterRun": after_run, **look, **({"detached": True} if detached else {})}


class Heartbeat:
    """Sends heartbeats during a `with` block, over open connections only. Delays neither the job nor the program's end.

    Also knows from the replies how the job is.
    """

    def __init__(self, link: Link, run: str, fields: dict[str, Any] | None = None) -> None:
        """`fields` are those of `first_heartbeat`. A client that only follows sends none, and the first ones stay."""
        self._link, self._run, self._fields = link, run, fields or {}
        self._over = threading.Event()
        self._sending = threading.Lock()
        self._clock_offset = 0.0
        """By how many seconds the target's clock is ahead of this computer's."""
        self._active_at = 0.0
        """When the job last printed something, or its GPU was busy, by the target's clock."""
        self._reply: dict[str, Any] = {}
        self._unanswered: _Unanswered | None = None

    def __enter__(self) -> Self:
        threading.Thread(target=self._send_regularly, name="heartbeat", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def note_start(self, at: datetime) -> None:
        """Count the start of the job, by this computer's clock, as activity."""
        self._active_at = max(self._active_at, at.timestamp() + self._clock_offset)

    def note_output(self, frame: Frame) -> None:
        """Count output of the job as activity."""
        self._active_at = max(self._active_at, frame.time / 1e9)

    @property
    def idle_seconds(self) -> float:
        """The seconds since the job last printed something or its GPU was busy, as far as this client knows."""
        return max(0.0, time.time() + self._clock_offset - self._active_at)

    @property
    def ended(self) -> JobEnd | None:
        """How the job ended, or how the machine is stopping it, according to the last reply; None while it runs."""
        state = self._reply.get("state")
        with contextlib.suppress(JobError):
            if isinstance(state, dict) and (end := parse_job_end(state)):
                return end
        return parse_machine_stop(self._reply.get("ending"))

    @property
    def gpu(self) -> GpuSample | None:
        """What the GPUs did at the last reply, or None if no job measures them."""
        with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
            found = self._reply["gpu"]
            memory = found["memoryMib"]
            return GpuSample(float(found["utilization"]), None if memory is None else int(memory))
        return None

    def detach(self) -> None:
        """Tell the target that the client leaves on purpose. If this fails, the target notices it by itself."""
        self._leave({"detached": True})

    def keep_machine(self) -> None:
        """Tell the target that its lease alone ends it, for a look at the failed job. Failures as in `detach`."""
        self._leave({"detached": True, "afterRun": "keep"})

    def _leave(self, fields: dict[str, Any]) -> None:
        self._over.set()
        # In a thread: a silent machine must not delay the user.
        sent = in_thread(lambda: self._send_last(fields), "detach")
        with contextlib.suppress(TimeoutError):
            sent.result(DETACH_SECONDS)

    @contextlib.contextmanager
    def report_silence(self, note: Callable[[str], None]) -> Iterator[None]:
        """Call `note` during the block when the machine stops answering, and when it answers again."""
        over = threading.Event()
        thread = threading.Thread(target=self._watch_silence, args=(over, note), name="silence", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()

    def _watch_silence(self, over: threading.Event, note: Callable[[str], None]) -> None:
        silent_machine, asleep = "", suspended_seconds()
        while not over.wait(CHECK_SECONDS):
            unanswered = self._unanswered
            slept, asleep = suspended_seconds() - asleep, suspended_seconds()
            if slept >= SLEPT_SECONDS:
                # Routers forget connections, and machines close them, so an answer may never come.
                note(f"this computer slept for {_duration(slept)}; connecting again")
                self._reconnect(over)
            elif unanswered and not unanswered.connection.is_open:
                silent_machine = ""  # the connection is lost, which `JobFollower` reports
            elif unanswered and unanswered.silent_seconds >= SILENT_SECONDS:
                if not silent_machine:
                    silent_machine = unanswered.connection.where
                    silence = f"no answer from {silent_machine} for {unanswered.silent_seconds:.0f} s"
                    note(f"{silence}; the job keeps running, waiting for an answer")
                if self._link.answers and self._link.answers() and unanswered.silent_seconds >= SILENT_SECONDS:
                    # The machine answers, but not on this connection, for example after a change of the network.
                    self._link.replace(unanswered.connection)
            elif silent_machine:
                note(f"{silent_machine} answers again")
                silent_machine = ""

    def _reconnect(self, over: threading.Event) -> None:
        """Drop the connection as soon as the machine answers on a new one."""
        remote = self._link.remote_if_open
        while remote and self._link.answers and not over.is_set():
            if self._link.answers():
                self._link.replace(remote.connection)
                return
            over.wait(CHECK_SECONDS)

    def _send_regularly(self) -> None:
        while not self._over.wait(PERIOD_SECONDS):
            with self._sending:
                if not self._over.is_set():
                    self._send(ANSWER_SECONDS)

    def _send_last(self, fields: dict[str, Any]) -> None:
        with self._sending:
            self._fields = {**self._fields, **fields}
            self._send(DETACH_SECONDS)

    def _send(self, seconds: float) -> None:
        try:
            # If there is no connection, the follower opens one.
            if remote := self._link.remote_if_open:
                if self._unanswered is None or self._unanswered.connection is not remote.connection:
                    self._unanswered = _Unanswered(remote.connection, time.monotonic())
                self._read_reply(remote.ask("heartbeat", seconds=seconds, run=self._run, **self._fields))
            self._unanswered = None
        except (ConnectError, RemoteError) as error:
            logger.debug("no heartbeat was sent: %s", error)
        except Exception:
            # Continue after any error: without heartbeats, the machine goes off.
            logger.debug("no heartbeat was sent", exc_info=True)

    def _read_reply(self, reply: dict[str, Any]) -> None:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            self._clock_offset = float(reply["now"]) - time.time()
            if reply["gpuBusy"] is not None:
                self._active_at = max(self._active_at, float(reply["now"]) - float(reply["gpuBusy"]))
        if reply.get("state"):  # after the run was deleted on the target, keep its last state
            self._reply = reply


def suspended_seconds() -> float:
    """Return for how long this computer has been suspended since it was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes else f"{seconds:.0f} s"


def parse_machine_stop(ending: Any) -> JobEnd | None:
    """Return how the machine is stopping a job, without its exit code, or None if it is not."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        stop_reason = StopReason(ending["how"])
        if stop_reason.is_by_machine:
            return JobEnd(UNKNOWN_EXIT_CODE, stop_reason, None, str(ending.get("detail", "")))
    return None
