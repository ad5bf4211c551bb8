"""Wait until a machine can run jobs (SSH, GPU, Docker), and check whether an existing machine can."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from gpuinfra.models.target import Checkup, GpuFacts, Target, TargetCheck
from gpuinfra.runner.connection.port import Shell
from gpuinfra.runner.connection.ssh import SshConnection
from gpuinfra.runner.docker.check import LIMIT_SECONDS, CommandOutput, is_denied, judge, look_at_docker, read, script
from gpuinfra.runner.errors import (
    ConnectError,
    HostKeyChanged,
    HostKeyInvalid,
    HostKeyMismatch,
    KeyUnusable,
    LoginRefused,
    TimedOut,
)
from gpuinfra.runner.nvidia_smi import NoGpuError, ask
from gpuinfra.runner.progress import Progress

# A child of the program's logger, so that `--verbose` shows it.
logger = logging.getLogger(__name__)

SSH, GPU, DOCKER = "ssh", "gpu", "docker"

# The time limits of one connection and of one command.
CONNECT_SECONDS, COMMAND_SECONDS = 20.0, 30.0
# The time for an attempt at the end of a wait.
MIN_SECONDS = 1.0
FIRST_PAUSE, MAX_PAUSE, GROWTH = 0.2, 2.0, 1.5

# cloud-init replaces the image's own host keys within this time, and then writes the administrator's login key.
HOST_KEY_SECONDS = 60.0
LOGIN_SECONDS = 180.0
# Docker may start a little later than cloud-init ends.
ENGINE_SECONDS = 30.0
# A user who was added to the group `docker` is a member from the next login on, so try once more.
DENIED_SECONDS = 0.1

NO_ENGINE_HERE = "no Docker Engine on this computer, which simulated machines use"
NO_GPU_HELP = "use a machine with an NVIDIA GPU; `lspci | grep -i nvidia` lists the GPUs of a machine"

T = TypeVar("T")
Opener = Callable[[Target, float], Shell]


class NotReady(Exception):  # noqa: N818 a state, not a fault
    """The machine is on but does not become usable."""

    is_login_refused = False
    """Whether the machine answers but accepts no key of this computer."""

    def __init__(self, stage: str, reason: str, help: str | None = None) -> None:  # noqa: A002 the name in Diagnostic
        super().__init__(reason)
        self.stage, self.reason, self.help = stage, reason, help
        """The stage is `ssh`, `gpu` or `docker`."""


def wait_until_ready(  # noqa: PLR0913 tests replace the clock, the pauses and the connection
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
    """Wait until SSH accepts the login and then until the GPU answers. Raise NotReady if that takes too long.

    A login that is refused for `login_seconds` counts as refused for good.
    """

    def explain(error: Exception) -> _Failure:
        return _ssh_or_gpu_failure(error, target.machine, login_seconds)

    with contextlib.closing(_GpuQuery(target, opener)) as query:
        wait = _Wait(f"{SSH} {target.machine}", ssh_seconds, progress, clock, pause)
        with wait.step("waiting for SSH"):
            wait.until(lambda: query.connect(wait.limit(CONNECT_SECONDS)), explain)
        progress.end(wait.name, f"{target.username}@{target.address}:{target.port}")
        wait = _Wait(f"{GPU} {target.machine}", gpu_seconds, progress, clock, pause)
        with wait.step("waiting for nvidia-smi"):
            facts = wait.until(lambda: query.ask(wait.limit(CONNECT_SECONDS), wait.limit(COMMAND_SECONDS)), explain)
        progress.end(wait.name, facts.summary)
    return facts


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
    """Wait until Docker works, and return its check. Raise NotReady if that takes too long.

    Each attempt logs in again, because a new member of the group `docker` is one only from the next login on. A
    simulated machine uses the Docker Engine of this computer; if there is none, the failed check is returned at once.
    """

    def attempt() -> TargetCheck:
        with contextlib.closing(opener(target, CONNECT_SECONDS)) as connection:
            check, is_booting = look_at_docker(connection, target.username, COMMAND_SECONDS)
        if check.passed or (simulated and not is_denied(check)):
            return check
        raise _DockerError(check, is_booting=is_booting)

    wait = _Wait(f"{DOCKER} {target.machine}", seconds, progress, clock, pause)
    with wait.step("waiting for Docker"):
        check = wait.until(attempt, lambda error: _docker_failure(error, target.machine))
    if check.passed:
        progress.end(wait.name, check.found)
    else:
        logger.debug("%s: %s", wait.name, check.found)
        progress.fail(wait.name, NO_ENGINE_HERE)
    return check


@dataclass(frozen=True, slots=True)
class _Failure:
    """What a failed attempt means for the wait."""

    doing: str
    """What the wait is for from now on."""
    stage: str
    help: str | None
    grace: float = math.inf
    """How long this cause may last, from its first occurrence on."""
    cause: object = None
    """Failures of the same cause share one grace period."""


class _Wait:
    """Repeats an attempt with growing pauses until it succeeds, or until its failure is final."""

    def __init__(
        self,
        name: str,
        seconds: float,
        progress: Progress,
        clock: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        self.name = name
        self._seconds, self._progress, self._clock, self._pause = seconds, progress, clock, pause
        self._doing = ""
        self._deadline = clock() + seconds
        self._first_seen: dict[object, float] = {}

    @contextlib.contextmanager
    def step(self, doing: str) -> Iterator[None]:
        """Show the wait as a step, which fails with NotReady."""
        self._show(doing)
        try:
            yield
        except NotReady as error:
            self._progress.fail(self.name, error.reason)
            raise

    def limit(self, seconds: float) -> float:
        """Return `seconds`, or the time left if that is less; at least enough for one attempt."""
        return min(seconds, max(MIN_SECONDS, self._deadline - self._clock()))

    def until(self, attempt: Callable[[], T], explain: Callable[[Exception], _Failure]) -> T:
        """Return the result of the first attempt that succeeds, or raise NotReady."""
        next_pause = FIRST_PAUSE
        while True:
            try:
                return attempt()
            except (ConnectError, NoGpuError, _DockerError) as error:
                logger.debug("%s: %s", self.name, error)
                failure = explain(error)
                self._check(failure, error)
                self._show(failure.doing)
            self._pause(min(next_pause, max(0.0, self._deadline - self._clock())))
            next_pause = min(next_pause * GROWTH, MAX_PAUSE)

    def _check(self, failure: _Failure, error: Exception) -> None:
        """Raise NotReady if the time is over, for the whole wait or for this cause."""
        now = self._clock()
        is_over = now >= self._deadline
        if is_over or now - self._first_seen.setdefault(failure.cause, now) >= failure.grace:
            reason = f"{error} (waited {self._seconds:g} s)" if is_over else str(error)
            not_ready = NotReady(failure.stage, reason, failure.help)
            not_ready.is_login_refused = isinstance(error, LoginRefused) and not isinstance(error, KeyUnusable)
            raise not_ready from error

    def _show(self, doing: str) -> None:
        if doing != self._doing:
            self._doing = doing
            self._progress.begin(self.name, doing)


class _GpuQuery:
    """Queries the GPU over one connection, opened again if lost: a machine that installs its driver may restart."""

    def __init__(self, target: Target, opener: Opener) -> None:
        self._target, self._opener = target, opener
        self._connection: Shell | None = None

    def connect(self, seconds: float) -> Shell:
        self._connection = self._connection or self._opener(self._target, seconds)
        return self._connection

    def ask(self, connect_seconds: float, command_seconds: float) -> GpuFacts:
        try:
            return ask(self.connect(connect_seconds), command_seconds)
        except TimedOut:
            raise  # the driver is slow; the connection still works
        except ConnectError:
            self.close()
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection:
            connection.close()


def _ssh_or_gpu_failure(error: Exception, machine: str, login_seconds: float) -> _Failure:
    match error:
        case HostKeyInvalid() | HostKeyChanged():
            return _Failure("waiting for SSH", SSH, error.help, 0, HostKeyInvalid)
        case HostKeyMismatch():
            return _Failure("waiting for its host key", SSH, error.help, HOST_KEY_SECONDS, HostKeyMismatch)
        case KeyUnusable():
            return _Failure("waiting for its login key", SSH, error.help, 0, KeyUnusable)
        case LoginRefused():
            return _Failure("waiting for its login key", SSH, error.help, login_seconds, LoginRefused)
        case ConnectError() if not isinstance(error, TimedOut):
            return _Failure("waiting for SSH", SSH, error.help)
        case _:
            return _Failure("waiting for nvidia-smi", GPU, f"look for yourself: `gpuinfra ssh {machine} -- nvidia-smi`")


class _DockerError(Exception):
    """Docker does not work on the machine, or not yet."""

    def __init__(self, check: TargetCheck, *, is_booting: bool) -> None:
        super().__init__(check.found)
        self.check, self.is_booting = check, is_booting


def _docker_failure(error: Exception, machine: str) -> _Failure:
    doing = "waiting for Docker"
    if not isinstance(error, _DockerError):
        return _Failure(doing, SSH, error.help if isinstance(error, ConnectError) else None)
    help_line = f"{error.check.help or 'make Docker work on the machine'}; log in with `gpuinfra ssh {machine}`"
    if error.is_booting:
        return _Failure(doing, DOCKER, help_line)
    grace = DENIED_SECONDS if is_denied(error.check) else ENGINE_SECONDS
    return _Failure(doing, DOCKER, help_line, grace, "after the boot")


def examine(connection: Shell, *, docker: bool, gpu: bool, timeout: float) -> Checkup:
    """Check whether a machine can run jobs, in two round trips. Raise ConnectError if it stops answering."""
    # With `sh`, because the user's login shell may be any other.
    completed = connection.run(["sh", "-c", script(docker=docker, gpu=gpu)], timeout=timeout)
    parts = read(completed.stdout)
    if "system" not in parts:
        said = CommandOutput(completed.exit_code, f"{completed.stdout} {completed.stderr}")
        found = f"no shell: it said {said.brief}"
        return Checkup((TargetCheck("ssh", False, found, "jobs need a Linux user with a shell"),))
    checks = judge(parts, docker=docker, gpu=gpu)
    if not gpu:
        return Checkup(checks, _optional_gpu(connection, min(timeout, LIMIT_SECONDS)))
    try:
        facts = ask(connection, timeout)
    except (NoGpuError, TimedOut) as error:
        is_absent = isinstance(error, NoGpuError) and error.is_absent
        help_line = NO_GPU_HELP if is_absent else "make `nvidia-smi` work on the machine"
        return Checkup((*checks, TargetCheck("gpu", False, str(error), help_line)))
    return Checkup((*checks, TargetCheck("gpu", True, facts.summary)), facts)


def _optional_gpu(connection: Shell, timeout: float) -> GpuFacts | None:
    """Return the GPU of a machine whose jobs do not use it: it shows whether the machine is simulated."""
    try:
        return ask(connection, timeout)
    except (NoGpuError, TimedOut):
        return None
