"""Whether a machine can run jobs: wait for SSH, its GPU and Docker, and check them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from gpuinfra.diagnostics import Code, Diagnostic
from gpuinfra.models.gpu import GpuFacts
from gpuinfra.models.target import Checkup, Target, TargetCheck
from gpuinfra.runner.connection.port import Shell
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.docker.check import LIMIT_SECONDS, Said, is_denied, judge, look_at_docker, read, script
from gpuinfra.runner.errors import (
    ConnectError,
    HostKeyChanged,
    HostKeyInvalid,
    HostKeyMismatch,
    KeyUnusable,
    LoginRefused,
    TimedOut,
)
from gpuinfra.runner.gpu.nvidia_smi import NoGpuError, ask

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
Grace = tuple[tuple[type[ConnectError], float], ...]
GRACE: Grace = (
    (HostKeyInvalid, 0),
    (HostKeyChanged, 0),
    (KeyUnusable, 0),
    # cloud-init has not replaced the image's own host keys yet.
    (HostKeyMismatch, 60),
)
# cloud-init has not written the administrator's key yet.
LOGIN_SECONDS = 180.0
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
        """A step begins, or does something else now."""

    def end(self, step: str, outcome: str) -> None:
        """It is done."""

    def fail(self, step: str, reason: str) -> None:
        """It failed."""


class NotReady(Exception):  # noqa: N818 a state of things
    """The machine is on and does not become usable."""

    is_login_refused = False
    """Whether the machine answers and accepts no key of this computer."""

    def __init__(self, stage: str, reason: str, help: str | None = None) -> None:  # noqa: A002 the diagnostic's own word
        super().__init__(reason)
        self.stage, self.reason, self.help = stage, reason, help
        """The stage is `ssh`, `gpu` or `docker`."""

    @property
    def diagnostic(self) -> Diagnostic:
        """The problem to show."""
        return Diagnostic(Code.NOT_READY, SUMMARIES[self.stage], note=self.reason, help=self.help)


def wait_until_ready(  # noqa: PLR0913 each is a part to replace in tests
    target: Target,
    *,
    ssh_seconds: float = 600,
    gpu_seconds: float = 300,
    login_seconds: float = LOGIN_SECONDS,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    opener: Opener = SshConnection.open,
) -> GpuFacts:
    """Until SSH answers with the expected host key and lets us in, and then until the GPU answers.

    A login that is refused for `login_seconds` is refused for good.
    """
    grace: Grace = (*GRACE, (LoginRefused, login_seconds))
    with contextlib.closing(_Line(target, opener)) as line:
        with _Wait(SSH, target.machine, ssh_seconds, grace, progress, clock, pause) as wait:
            wait.until(lambda: line.open(wait.at_most(TRY_SECONDS)))
            wait.end(f"{target.username}@{target.address}:{target.port}")
        with _Wait(GPU, target.machine, gpu_seconds, grace, progress, clock, pause) as wait:
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
        grace: Grace,
        progress: Progress,
        clock: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        self._stage, self._machine, self._seconds = stage, machine, seconds
        self._grace, self._progress, self._clock, self._pause = grace, progress, clock, pause
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
        """Return these seconds or what is left of the wait, and enough for one attempt."""
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
        for kind, grace in self._grace:
            if isinstance(error, kind):
                if now - self._first_seen.setdefault(kind, now) >= grace:
                    raise self._over(error, str(error)) from error
                return

    def _over(self, error: ConnectError | NoGpuError, reason: str) -> NotReady:
        if isinstance(error, NoGpuError | TimedOut):
            return NotReady(GPU, reason, f"look for yourself: `gpuinfra ssh {self._machine} -- nvidia-smi`")
        # What keeps us from asking for the GPU is not the GPU.
        found = NotReady(SSH, reason, error.help)
        found.is_login_refused = isinstance(error, LoginRefused) and not isinstance(error, KeyUnusable)
        return found

    def _do(self, doing: str) -> None:
        if doing != self._doing:
            self._doing = doing
            self._progress.begin(self._step, doing)


# Below the program's own logger, so that `--verbose` shows it.
logger = logging.getLogger(f"gpuinfra.{__name__}")

# The engine may start a little later than cloud-init ends.
ENGINE_SECONDS = 30.0
NO_ENGINE_HERE = "no Docker Engine on this computer, which simulated machines use"


def wait_for_docker(
    target: Target,
    *,
    seconds: float,
    progress: Progress,
    simulated: bool = False,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    opener: Opener = SshConnection.open,
) -> TargetCheck:
    """Return the check of Docker when it passes; raises NotReady when it does not in time.

    Every attempt logs in again: a user who was added to the group `docker` is a member from the next login on.
    A simulated machine uses the engine of this computer; where there is none, the failed check is returned at once.
    """
    step, began = f"docker {target.machine}", clock()
    booted: float | None = None
    next_pause = FIRST_PAUSE
    progress.begin(step, "waiting for Docker")
    try:
        while True:
            try:
                check, is_booting = _look(target, opener)
            except ConnectError as error:
                logger.debug("%s: %s", step, error)
                if clock() - began >= seconds:
                    raise NotReady(SSH, str(error), error.help) from error
            else:
                if check.passed:
                    progress.end(step, check.found)
                    return check
                logger.debug("%s: %s", step, check.found)
                if simulated and not is_denied(check):
                    progress.fail(step, NO_ENGINE_HERE)
                    return check
                grace = 0.0 if is_denied(check) else ENGINE_SECONDS
                if clock() - began >= seconds or (booted is not None and clock() - booted >= grace):
                    raise NotReady(DOCKER, check.found, _help(check, target))
                booted = booted if is_booting else booted or clock()
            pause(next_pause)
            next_pause = min(next_pause * GROWTH, LONGEST_PAUSE)
    except NotReady as error:
        progress.fail(step, error.reason)
        raise


def _look(target: Target, opener: Opener) -> tuple[TargetCheck, bool]:
    with contextlib.closing(opener(target, TRY_SECONDS)) as connection:
        return look_at_docker(connection, target.username, ASK_SECONDS)


def _help(check: TargetCheck, target: Target) -> str:
    return f"{check.help or 'make Docker work there'}; log in with `gpuinfra ssh {target.machine}`"


NO_GPU_HELP = "use a machine with an NVIDIA GPU; `lspci | grep -i nvidia` lists the GPUs that a machine has"


def examine(connection: Shell, *, docker: bool, gpu: bool, timeout: float) -> Checkup:
    """Ask a machine, in two round trips. Raises ConnectError where it stops answering."""
    # By `sh`, whatever shell the user has there.
    done = connection.run(["sh", "-c", script(docker=docker, gpu=gpu)], timeout=timeout)
    parts = read(done.stdout)
    if "system" not in parts:
        said = Said(done.exit_code, f"{done.stdout} {done.stderr}")
        return Checkup(
            (TargetCheck("ssh", False, f"no shell: it said {said.brief}", "jobs need a Linux user with a shell"),)
        )
    checks = judge(parts, docker=docker, gpu=gpu)
    if not gpu:
        return Checkup(checks, _unwanted(connection, min(timeout, LIMIT_SECONDS)))
    try:
        facts = ask(connection, timeout)
    except (NoGpuError, TimedOut) as error:
        is_absent = isinstance(error, NoGpuError) and error.is_absent
        help_line = NO_GPU_HELP if is_absent else "make `nvidia-smi` work on the machine"
        return Checkup((*checks, TargetCheck("gpu", False, str(error), help_line)))
    return Checkup((*checks, TargetCheck("gpu", True, facts.summary)), facts)


def _unwanted(connection: Shell, timeout: float) -> GpuFacts | None:
    """The GPU of a machine whose jobs get none: it still tells whether the machine is simulated."""
    try:
        return ask(connection, timeout)
    except (NoGpuError, TimedOut):
        return None  # the jobs need none
