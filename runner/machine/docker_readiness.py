"""Wait until the user of a machine can run containers on it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from gpuinfra.models.checkup import Check
from gpuinfra.models.target import Target
from gpuinfra.runner.machine.checkup import is_denied, look_at_docker
from gpuinfra.runner.machine.connection import ConnectError
from gpuinfra.runner.machine.readiness import (
    ASK_SECONDS,
    DOCKER,
    FIRST_PAUSE,
    GROWTH,
    LONGEST_PAUSE,
    SSH,
    TRY_SECONDS,
    NotReady,
    Opener,
    Progress,
)
from gpuinfra.runner.machine.ssh import SshConnection

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
) -> Check:
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
                    progress.end(step, NO_ENGINE_HERE)
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


def _look(target: Target, opener: Opener) -> tuple[Check, bool]:
    with contextlib.closing(opener(target, TRY_SECONDS)) as connection:
        return look_at_docker(connection, target.username, ASK_SECONDS)


def _help(check: Check, target: Target) -> str:
    return f"{check.help or 'make Docker work there'}; log in with `gpuinfra ssh {target.machine}`"
