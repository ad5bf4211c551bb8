"""Which machines answer SSH right now, without a login."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gpuinfra.models.target import Reachability, Target
from gpuinfra.runner.background import within
from gpuinfra.runner.connection.handshake import close, greet
from gpuinfra.runner.connection.host_key import HostKey
from gpuinfra.runner.errors import ConnectError, HostKeyInvalid, HostKeyMismatch

AT_ONCE = 16
# A call that gives up by itself says more than one that is given up.
GRACE_SECONDS = 0.5
MOMENT = 0.2

REASONS: tuple[tuple[type[Exception], str], ...] = (
    (ConnectionRefusedError, "connection refused"),
    (socket.gaierror, "name unknown"),
    (TimeoutError, "timed out"),
)


def reachability(targets: Sequence[Target], seconds: float) -> tuple[Reachability, ...]:
    """Return one for each target, in their order, each within these seconds."""
    # Every turn ends in time, so a pool is safe: what may hang is in daemon threads.
    pool = ThreadPoolExecutor(min(AT_ONCE, len(targets) or 1), "reach")
    try:
        return tuple(pool.map(partial(_take_turn, seconds=seconds), targets))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _take_turn(target: Target, seconds: float) -> Reachability:
    try:
        # Looking up a name has no deadline of its own.
        return within(seconds + GRACE_SECONDS, partial(_look, target, time.monotonic() + seconds))
    except TimeoutError:
        return Reachability("no", "timed out")


def _look(target: Target, ends: float) -> Reachability:
    try:
        expected = HostKey.parse(target.host_key) if target.host_key else None
        close(greet(target.address, target.port, expected, ends))
    except HostKeyMismatch as error:
        return Reachability("other-key", f"shows {error.shown}" if error.shown else "shows a key of another kind")
    except HostKeyInvalid:
        return Reachability("no", "the host key that is expected is no key")
    except ConnectError as error:
        return Reachability("no", _reason(error, is_late=time.monotonic() > ends - MOMENT))
    return Reachability("yes")


def _reason(error: ConnectError, *, is_late: bool) -> str:
    cause = error.__cause__
    for kind, reason in REASONS:
        if isinstance(cause, kind):
            return reason
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    # A server that listens and is silent may still be an SSH server.
    return "timed out" if is_late else "not an SSH server"
