"""Check which machines answer SSH, without a login."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from gpuinfra.models.target import Reachability, Target
from gpuinfra.runner.background import within
from gpuinfra.runner.connection.handshake import close, open_transport
from gpuinfra.runner.connection.host_key import HostKey
from gpuinfra.runner.errors import ConnectError, HostKeyInvalid, HostKeyMismatch

MAX_THREADS = 16
# A connection attempt that times out by itself gives a better reason than one that is abandoned.
GRACE_SECONDS = 0.5
# A failure this shortly before the deadline is a timeout.
LATE_SECONDS = 0.2

REASONS: tuple[tuple[type[Exception], str], ...] = (
    (ConnectionRefusedError, "connection refused"),
    (socket.gaierror, "name unknown"),
    (TimeoutError, "timed out"),
)


def reachability(targets: Sequence[Target], seconds: float) -> tuple[Reachability, ...]:
    """Return the reachability of each target, in the given order. Each check takes at most `seconds`."""
    # Every check ends in time, because the part that may hang runs in a daemon thread. So a pool is safe.
    pool = ThreadPoolExecutor(min(MAX_THREADS, len(targets) or 1), "reach")
    try:
        return tuple(pool.map(partial(_check, seconds=seconds), targets))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _check(target: Target, seconds: float) -> Reachability:
    try:
        # Name resolution has no timeout.
        return within(seconds + GRACE_SECONDS, partial(_handshake, target, time.monotonic() + seconds))
    except TimeoutError:
        return Reachability("no", "timed out")


def _handshake(target: Target, deadline: float) -> Reachability:
    try:
        expected = HostKey.parse(target.host_key) if target.host_key else None
        close(open_transport(target.address, target.port, expected, deadline))
    except HostKeyMismatch as error:
        return Reachability("other-key", f"shows {error.shown}" if error.shown else "shows a key of another kind")
    except HostKeyInvalid:
        return Reachability("no", "the recorded host key is invalid")
    except ConnectError as error:
        return Reachability("no", _reason(error, is_late=time.monotonic() > deadline - LATE_SECONDS))
    return Reachability("yes")


def _reason(error: ConnectError, *, is_late: bool) -> str:
    cause = error.__cause__
    for kind, reason in REASONS:
        if isinstance(cause, kind):
            return reason
    if isinstance(cause, OSError) and cause.strerror:
        return cause.strerror.lower()
    # A server that accepts connections but stays silent may still be an SSH server.
    return "timed out" if is_late else "not an SSH server"
