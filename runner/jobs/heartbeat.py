"""Heartbeats for a run: every few seconds the target learns that a client is there, and answers how the job is.

A machine that exists for one run goes off by itself when heartbeats stop: `remote.heartbeat`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from gpuinfra.runner.background import begin
from gpuinfra.runner.connection.port import Connection
from gpuinfra.runner.errors import ConnectError, JobError, RemoteError
from gpuinfra.runner.jobs.job import Ended, Frame, StopReason
from gpuinfra.runner.jobs.remote_runs import UNKNOWN_EXIT_CODE, ended_of
from gpuinfra.runner.link import Link

# Below the program's own logger, so that `--verbose` shows it.
logger = logging.getLogger(f"gpuinfra.{__name__}")

# The target takes a client for gone after 45 s; it is to hear of one at least every 10.
PERIOD_SECONDS = 5.0
ANSWER_SECONDS = 20.0
LET_GO_SECONDS = 5.0
# A machine that does not answer for this long is reported as silent.
SILENT_SECONDS = 8.0
LOOK_SECONDS = 0.5


def begun(after_run: str | None, *, detached: bool = False) -> dict[str, Any]:
    """Return the first heartbeat of a run: what happens to the machine afterwards, and whether the client stays."""
    return {"afterRun": after_run, **({"detached": True} if detached else {})}


class Heartbeat:
    """Sends heartbeats during a `with` block. It delays neither the job nor the end of the program, and makes no
    connection of its own."""

    def __init__(self, link: Link, run: str, said: dict[str, Any] | None = None) -> None:
        """`said` is what `begun` gives. A client that only follows says nothing, and what was said before stays."""
        self._link, self._run, self._said = link, run, said or {}
        self._over = threading.Event()
        self._speaking = threading.Lock()
        self._ahead = 0.0
        """The seconds by which the target's clock is ahead of this computer's."""
        self._worked_at = 0.0
        """When the job last printed something, or its GPU did, by the target's clock."""
        self._heard: dict[str, Any] = {}
        self._asked: tuple[Connection, float] | None = None
        """The connection, and since when a question on it has no answer; None where all have one."""

    def __enter__(self) -> Self:
        threading.Thread(target=self._attend, name="attending", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def began(self, at: datetime) -> None:
        """The job began, by our clock: whatever it does first, it is at work."""
        self._worked_at = max(self._worked_at, at.timestamp() + self._ahead)

    def printed(self, frame: Frame) -> None:
        """The job printed something."""
        self._worked_at = max(self._worked_at, frame.time / 1e9)

    @property
    def seconds_without_work(self) -> float:
        """Since the job last printed something, or its GPU was busy, as far as was heard."""
        return max(0.0, time.time() + self._ahead - self._worked_at)

    @property
    def ended(self) -> Ended | None:
        """How the job ended, or is being ended by the machine, as last heard; None while it runs."""
        state, ending = self._heard.get("state"), self._heard.get("ending")
        with contextlib.suppress(JobError):
            if isinstance(state, dict) and (found := ended_of(state)):
                return found
        return ended_by_machine(ending)

    def let_go(self) -> None:
        """Tell the target that the client leaves on purpose. If that fails, the target notices it."""
        self._over.set()
        # In a thread: a silent machine must not delay the user.
        saying = begin(self._say_last, "letting go")
        with contextlib.suppress(TimeoutError):
            saying.result(LET_GO_SECONDS)

    @contextlib.contextmanager
    def reporting_silence(self, tell: Callable[[str], None]) -> Iterator[None]:
        """Tell, meanwhile, when nothing comes from the machine any longer, and when it answers again."""
        over = threading.Event()
        thread = threading.Thread(target=self._report_silence, args=(over, tell), name="silence", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()

    def _report_silence(self, over: threading.Event, tell: Callable[[str], None]) -> None:
        where = ""
        while not over.wait(LOOK_SECONDS):
            asked = self._asked
            if asked is not None and not asked[0].is_open:
                where = ""  # it is lost, and `JobFollower` says so
            elif (silent := _silent_seconds(asked)) >= SILENT_SECONDS and not where and asked:
                where = asked[0].where
                tell(f"no answer from {where} for {silent:.0f} s; the job keeps running, waiting for an answer")
            elif where and silent < SILENT_SECONDS:
                tell(f"{where} answers again")
                where = ""

    def _say_last(self) -> None:
        with self._speaking:
            self._said = {**self._said, "detached": True}
            self._say(LET_GO_SECONDS)

    def _attend(self) -> None:
        while not self._over.wait(PERIOD_SECONDS):
            with self._speaking:
                if not self._over.is_set():
                    self._say(ANSWER_SECONDS)

    def _say(self, seconds: float) -> None:
        try:
            # Without a connection, the follower makes one.
            if remote := self._link.open_far:
                if self._asked is None or self._asked[0] is not remote.connection:
                    self._asked = (remote.connection, time.monotonic())
                self._hear(remote.ask("run-attend", seconds=seconds, run=self._run, **self._said))
            self._asked = None
        except (ConnectError, RemoteError) as error:
            logger.debug("no heartbeat was sent: %s", error)
        except Exception:
            # Whatever it was, the next one follows: without heartbeats the machine goes off.
            logger.debug("no heartbeat was sent", exc_info=True)

    def _hear(self, answer: dict[str, Any]) -> None:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            self._ahead = float(answer["now"]) - time.time()
            if answer["gpuBusy"] is not None:
                self._worked_at = max(self._worked_at, float(answer["now"]) - float(answer["gpuBusy"]))
        if answer.get("state"):  # of a run that was forgotten, what was known before stays
            self._heard = answer


def _silent_seconds(asked: tuple[Connection, float] | None) -> float:
    """For how long nothing has come from a machine that was asked something; 0 where no answer is missing."""
    return time.monotonic() - max(asked[1], asked[0].heard_at) if asked else 0.0


def ended_by_machine(ending: Any) -> Ended | None:
    """Return how the machine stops a job; its exit code is not known yet."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        how = StopReason(ending["how"])
        return Ended(UNKNOWN_EXIT_CODE, how, None, str(ending.get("detail", ""))) if how.is_by_machine else None
    return None
