"""How every connection begins: a call, an agreement on keys, and whose key it was. What paramiko raises ends here."""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Iterator, Sequence

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from gpuinfra.runner.connection.host_key import ALGORITHMS, HostKey
from gpuinfra.runner.errors import (
    Broken,
    ConnectError,
    HostKeyMismatch,
    LoginRefused,
    PortClosed,
    Unreachable,
    interrupts_kept,
)

# A request that a starting machine did not hear is repeated by TCP after 1 and 3 seconds; then a new one is quicker.
CONNECT_SECONDS = 5.0
# What was sent, a keep-alive at least, and not acknowledged for this long, was lost.
SILENCE_SECONDS = 60

# They check what they encrypt in one go: half as quick again as paramiko's own first choice, and every sshd has them.
QUICK_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")

UNREACHED = (
    "is the machine on, and does its firewall, `network.allowSshFrom` in a spec, have the address that this computer "
    "has on the internet?"
)

# What a foreign exception means: while the connection is made, and once it is there. The first kind that fits counts.
MEANINGS: tuple[tuple[type[Exception], type[ConnectError], type[ConnectError]], ...] = (
    (paramiko.AuthenticationException, LoginRefused, Broken),
    (ConnectionRefusedError, PortClosed, Broken),
    # A machine that boots resets connections, hangs, and talks nonsense. Its thread hands on whatever it met.
    (Exception, Unreachable, Broken),
)


def first_meeting(address: str, port: int, timeout: float, kinds: Sequence[str] = tuple(ALGORITHMS)) -> HostKey:
    """Return the host key that a machine shows, the first it has of these kinds. No user name is sent to it."""
    transport = greet(address, port, None, time.monotonic() + timeout, kinds)
    try:
        key = transport.get_remote_server_key()
    finally:
        close(transport)
    return HostKey(key.get_name(), key.asbytes())


def greet(
    address: str, port: int, expected: HostKey | None, ends: float, kinds: Sequence[str] = tuple(ALGORITHMS)
) -> paramiko.Transport:
    """Connect, and agree on keys: with the machine that has the expected host key, or with any if none is expected."""
    _hush()
    where = place(address, port)
    with translated(f"nobody answers at {where}", UNREACHED):
        link = _call(address, port, min(left(ends), CONNECT_SECONDS))
    with contextlib.ExitStack() as hang_up:
        hang_up.callback(link.close)
        transport = paramiko.Transport(link)
        hang_up.callback(close, transport)
        # Only the expected kind, so that a machine with several keys shows the one that is known; else the best first.
        kinds = [expected.kind] if expected else kinds
        options = transport.get_security_options()
        options.key_types = [algorithm for kind in kinds for algorithm in ALGORITHMS[kind]]
        options.ciphers = (*QUICK_CIPHERS, *(each for each in options.ciphers if each not in QUICK_CIPHERS))
        _agree(transport, expected, where, ends)
        hang_up.pop_all()
    return transport


def _hush() -> None:
    """Keep paramiko's threads from printing failures, which are reported here.

    Not by its level: setting one goes through all loggers with the lock of all logging in hand, and a Ctrl-C in the
    middle of that would leave the lock taken for good.
    """
    logger = logging.getLogger("paramiko")
    logger.propagate = False
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())


def place(address: str, port: int) -> str:
    """`203.0.113.7:22`, `[2001:db8::7]:22`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def left(ends: float) -> float:
    """The seconds until then, and a moment at least: no time at all would be for ever."""
    return max(0.1, ends - time.monotonic())


def close(transport: paramiko.Transport) -> None:
    """Hang up. A second call does nothing."""
    transport.close()
    if transport.is_alive():
        # It looks ten times a second whether it should end.
        transport.join(1)


@contextlib.contextmanager
def translated(what: str, help: str | None = None, *, is_open: bool = False) -> Iterator[None]:  # noqa: A002
    """Turn every exception of the block into a ConnectError."""
    try:
        with interrupts_kept():
            yield
    except ConnectError:
        raise
    except Exception as error:
        raise told(error, what, help, is_open=is_open) from error


def told(error: Exception, what: str, help: str | None = None, *, is_open: bool = False) -> ConnectError:  # noqa: A002
    """Return the ConnectError for a foreign exception."""
    opening, later = next(kinds for foreign, *kinds in MEANINGS if isinstance(error, foreign))
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return (later if is_open else opening)(f"{what}: {reason}", help)


def _call(address: str, port: int, timeout: float) -> socket.socket:
    link = socket.create_connection((address, port), timeout)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000)
    return link


def _agree(transport: paramiko.Transport, expected: HostKey | None, where: str, ends: float) -> None:
    transport.banner_timeout = transport.handshake_timeout = left(ends)
    with translated(f"{where} answers, but not as an SSH server"):
        try:
            transport.start_client(timeout=left(ends))
            shown = transport.get_remote_server_key().asbytes()
        except IncompatiblePeer as error:
            if "host key" not in str(error):
                raise
            if expected is None:
                raise Unreachable(f"{where} has no host key of a kind that is taken here") from error
            raise HostKeyMismatch(where, expected.fingerprint, None) from error
    if expected and shown != expected.blob:
        raise HostKeyMismatch(where, expected.fingerprint, HostKey(expected.kind, shown).fingerprint)
