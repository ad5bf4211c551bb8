"""Open an SSH transport and verify the host key. Exceptions of paramiko become ConnectErrors here."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from gpuinfra.models.target import Reachability, Target
from gpuinfra.runner.connection.known_hosts import ALGORITHMS, HostKey
from gpuinfra.runner.errors import (
    Broken,
    ConnectError,
    HostKeyInvalid,
    HostKeyMismatch,
    LoginRefused,
    PortClosed,
    Unreachable,
    preserve_interrupt,
)
from gpuinfra.runner.progress import within

# TCP repeats a request that a starting machine missed after 1 and 3 seconds. After that, a new connection is faster.
CONNECT_SECONDS = 5.0
# A connection is lost if sent data, at least a keep-alive, is not acknowledged for this long.
SILENCE_SECONDS = 60
# Authenticated encryption: 1.5 times as fast as paramiko's first choice, and supported by every sshd.
FAST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")
UNREACHABLE_HELP = (
    "check that the machine is on, and that its firewall (`network.allowSshFrom` in a spec) allows the public IP "
    "address of this computer"
)
# A foreign exception, its ConnectError while connecting, and its ConnectError later. The first matching class counts.
CONNECT_ERRORS: tuple[tuple[type[Exception], type[ConnectError], type[ConnectError]], ...] = (
    (paramiko.AuthenticationException, LoginRefused, Broken),
    (ConnectionRefusedError, PortClosed, Broken),
    # A booting machine resets connections, hangs or sends garbage, so any other exception may occur.
    (Exception, Unreachable, Broken),
)


def fetch_host_key(address: str, port: int, timeout: float, kinds: Sequence[str] = tuple(ALGORITHMS)) -> HostKey:
    """Return the host key that a machine shows, of the first of these types that it has. Sends no user name."""
    transport = open_transport(address, port, None, time.monotonic() + timeout, kinds)
    try:
        key = transport.get_remote_server_key()
    finally:
        close(transport)
    return HostKey(key.get_name(), key.asbytes())


def open_transport(
    address: str, port: int, expected: HostKey | None, deadline: float, kinds: Sequence[str] = tuple(ALGORITHMS)
) -> paramiko.Transport:
    """Connect to the machine, and raise HostKeyMismatch if it does not have the expected host key."""
    _silence_paramiko()
    where = host_and_port(address, port)
    with connect_errors(f"cannot connect to {where}", UNREACHABLE_HELP):
        link = _connect(address, port, min(seconds_left(deadline), CONNECT_SECONDS))
    with contextlib.ExitStack() as cleanup:
        cleanup.callback(link.close)
        transport = paramiko.Transport(link)
        cleanup.callback(close, transport)
        # Offer only the expected type, so that a machine with several keys shows that one.
        kinds = [expected.kind] if expected else kinds
        options = transport.get_security_options()
        options.key_types = [algorithm for kind in kinds for algorithm in ALGORITHMS[kind]]
        options.ciphers = (*FAST_CIPHERS, *(each for each in options.ciphers if each not in FAST_CIPHERS))
        _negotiate(transport, expected, where, deadline)
        cleanup.pop_all()
    return transport


def answers(address: str, port: int, timeout: float) -> bool:
    """Return whether a server sends something on a new connection, as SSH servers do at once. Does not log in."""
    try:
        with socket.create_connection((address, port), timeout) as link:
            return bool(link.recv(1))
    except OSError:
        return False


def _silence_paramiko() -> None:
    """Keep paramiko from printing failures, which are reported here.

    Do not set the level instead: that takes the global logging lock, and a Ctrl-C would leave it locked.
    """
    logger = logging.getLogger("paramiko")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def host_and_port(address: str, port: int) -> str:
    """Return `203.0.113.7:22` or `[2001:db8::7]:22`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def seconds_left(deadline: float) -> float:
    """Return the seconds until the deadline, at least 0.1: paramiko takes 0 as no limit."""
    return max(0.1, deadline - time.monotonic())


def close(transport: paramiko.Transport) -> None:
    """Close the connection. Does nothing if it is closed."""
    transport.close()
    if transport.is_alive():
        # Its thread checks ten times per second whether to end.
        transport.join(1)


@contextlib.contextmanager
def connect_errors(summary: str, help: str | None = None, *, is_open: bool = False) -> Iterator[None]:  # noqa: A002
    """Raise a ConnectError for every exception in the block."""
    try:
        with preserve_interrupt():
            yield
    except ConnectError:
        raise
    except Exception as error:
        raise to_connect_error(error, summary, help, is_open=is_open) from error


def to_connect_error(
    error: Exception,
    summary: str,
    help: str | None = None,  # noqa: A002
    *,
    is_open: bool = False,
) -> ConnectError:
    """Return the ConnectError for a foreign exception; `is_open` if the connection had been established."""
    while_connecting, later = next(kinds for foreign, *kinds in CONNECT_ERRORS if isinstance(error, foreign))
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return (later if is_open else while_connecting)(f"{summary}: {reason}", help)


def _connect(address: str, port: int, timeout: float) -> socket.socket:
    link = socket.create_connection((address, port), timeout)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000)
    return link


def _negotiate(transport: paramiko.Transport, expected: HostKey | None, where: str, deadline: float) -> None:
    transport.banner_timeout = transport.handshake_timeout = seconds_left(deadline)
    with connect_errors(f"{where} answers, but not as an SSH server"):
        try:
            transport.start_client(timeout=seconds_left(deadline))
            shown = transport.get_remote_server_key().asbytes()
        except IncompatiblePeer as error:
            if "host key" not in str(error):
                raise
            if expected is None:
                raise Unreachable(f"{where} has no host key of a supported type") from error
            raise HostKeyMismatch(where, expected.fingerprint, None) from error
    if expected and shown != expected.blob:
        raise HostKeyMismatch(where, expected.fingerprint, HostKey(expected.kind, shown).fingerprint)


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
