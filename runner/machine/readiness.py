"""A machine that Azure calls running is not ready yet: it boots, takes its keys, loads its driver."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.models.gpu import GpuFacts
from gpuinfra.models.target import Target
from gpuinfra.runner.gpu.nvidia_smi import NoGpuError, ask
from gpuinfra.runner.machine.connection import (
    ConnectError,
    HostKeyChanged,
    HostKeyInvalid,
    HostKeyMismatch,
    KeyUnusable,
    LoginRefused,
    Shell,
    TimedOut,
)
from gpuinfra.runner.machine.ssh import SshConnection

# Below the program's own logger, so that `--verbose` shows it.
logger = logging.getLogger(f"gpuinfra.{__name__}")

SSH, GPU, DOCKER = "ssh", "gpu", "docker"
SUMMARIES = {
    SSH: "the machine cannot be reached by SSH",
    GPU: "the machine's GPU does not work",
    DOCKER: "Docker does not work on the machine",
}

# How long one attempt may take, and one question.
TRY_SECONDS, ASK_SECONDS = 20.0, 30.0
FIRST_PAUSE, LONGEST_PAUSE, GROWTH = 0.2, 2.0, 1.5

# What may be wrong for how long, counted from when it was first seen; all else, until the wait is over.
GRACE: tuple[tuple[type[ConnectError], float], ...] = (
    (HostKeyInvalid, 0),
    (HostKeyChanged, 0),
    (KeyUnusable, 0),
    # cloud-init has not replaced the image's own host keys yet.
    (HostKeyMismatch, 60),
    # cloud-init has not written the administrator's key yet.
    (LoginRefused, 180),
)
DOING: tuple[tuple[type[Exception], str], ...] = (
    (HostKeyMismatch, "waiting for its host key"),
    (LoginRefused, "waiting for its login key"),
    (TimedOut, "waiting for nvidia-smi"),
    (ConnectError, "waiting for SSH"),
    (Exception, "waiting for nvidia-smi"),
)

T = TypeVar("T")
Opener = Callable[[Target, float], Shell]


class Progress(Protocol):
    """Hears of every step; `step` is a line on the screen."""

    def begin(self, step: str, doing: str) -> None:
        """A step begins, or goes on with something else."""

    def end(self, step: str, outcome: str) -> None:
        """It is done."""

    def fail(self, step: str, reason: str) -> None:
        """It failed."""


class NotReady(Exception):  # noqa: N818 a state of things
    """The machine is on and does not become usable."""

    def __init__(self, stage: str, reason: str, help: str | None = None) -> None:  # noqa: A002 the diagnostic's own word
        super().__init__(reason)
        self.stage, self.reason, self.help = stage, reason, help
        """The stage is `ssh`, `gpu` or `docker`."""

    @property
    def diagnostic(self) -> Diagnostic:
        """The problem to show."""
        return Diagnostic(Code.NOT_READY, SUMMARIES[self.stage], note=self.reason, help=self.help)


def wait_until_ready(
    target: Target,
    *,
    ssh_seconds: float = 600,
    gpu_seconds: float = 300,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    opener: Opener = SshConnection.open,
) -> GpuFacts:
    """Until SSH answers with the expected host key and lets us in, and then until the GPU answers."""
    with contextlib.closing(_Line(target, opener)) as line:
        with _Wait(SSH, target.machine, ssh_seconds, progress, clock, pause) as wait:
            wait.until(lambda: line.open(wait.at_most(TRY_SECONDS)))
            wait.end(f"{target.username}@{target.address}:{target.port}")
        with _Wait(GPU, target.machine, gpu_seconds, progress, clock, pause) as wait:
            facts = wait.until(lambda: line.ask(wait.at_most(TRY_SECONDS), wait.at_most(ASK_SECONDS)))
            wait.end(facts.summary)
    return facts


class _Line:
    """The connection, made again where it was lost: a machine that installs its driver may restart."""

    def __init__(self, target: Target, opener: Opener) -> None:
        self._target, self._opener = target, opener
        self._connection: Shell | None = None

    def open(self, seconds: float) -> Shell:
        self._connection = self._connection or self._opener(self._target, seconds)
        return self._connection

    def ask(self, seconds: float, ask_seconds: float) -> GpuFacts:
        try:
            return ask(self.open(seconds), ask_seconds)
        except TimedOut:
            raise  # the driver takes its time; the connection is as good as before
        except ConnectError:
            self.close()
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            connection.close()


class _Wait:
    """Attempts with growing pauses, until one succeeds or the time is over."""

    def __init__(
        self,
        stage: str,
        machine: str,
        seconds: float,
        progress: Progress,
        clock: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        self._stage, self._machine, self._seconds = stage, machine, seconds
        self._progress, self._clock, self._pause = progress, clock, pause
        self._step, self._doing = f"{stage} {machine}", ""
        self._ends = clock() + seconds
        self._next_pause = FIRST_PAUSE
        self._first_seen: dict[type[ConnectError], float] = {}

    def __enter__(self) -> _Wait:
        self._do("waiting for SSH" if self._stage == SSH else "waiting for nvidia-smi")
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, NotReady):
            self._progress.fail(self._step, error.reason)

    def end(self, outcome: str) -> None:
        self._progress.end(self._step, outcome)

    def at_most(self, seconds: float) -> float:
        """So many seconds or as many as are left, and enough for one attempt."""
        return min(seconds, max(1.0, self._ends - self._clock()))

    def until(self, attempt: Callable[[], T]) -> T:
        """What the first attempt gives that succeeds."""
        while True:
            try:
                return attempt()
            except (ConnectError, NoGpuError) as error:
                logger.debug("%s: %s", self._step, error)
                self._check(error)
                self._do(next(doing for kind, doing in DOING if isinstance(error, kind)))
            self._pause(min(self._next_pause, max(0.0, self._ends - self._clock())))
            self._next_pause = min(self._next_pause * GROWTH, LONGEST_PAUSE)

    def _check(self, error: ConnectError | NoGpuError) -> None:
        now = self._clock()
        if now >= self._ends:
            raise self._over(error, f"{error} (waited {self._seconds:g} s)") from error
        for kind, grace in GRACE:
            if isinstance(error, kind):
                if now - self._first_seen.setdefault(kind, now) >= grace:
                    raise self._over(error, str(error)) from error
                return

    def _over(self, error: ConnectError | NoGpuError, reason: str) -> NotReady:
        if isinstance(error, NoGpuError | TimedOut):
            return NotReady(GPU, reason, f"look for yourself: gpuinfra ssh {self._machine} -- nvidia-smi")
        # What keeps us from asking for the GPU is not the GPU.
        return NotReady(SSH, reason, error.help)

    def _do(self, doing: str) -> None:
        if doing != self._doing:
            self._doing = doing
            self._progress.begin(self._step, doing)
