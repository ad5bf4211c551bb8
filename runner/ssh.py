"""A connection by SSH. What paramiko raises ends here, by one table."""

from __future__ import annotations

import contextlib
import logging
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import paramiko
from paramiko.ssh_exception import IncompatiblePeer

from gpuinfra.models.target import Target
from runner.connection import (
    Broken,
    Completed,
    ConnectError,
    HostKeyMismatch,
    KeyUnusable,
    LoginRefused,
    TimedOut,
    Unreachable,
)
from runner.host_key import HostKey
from runner.keys import Keys, UnusableError

# A request that a starting machine did not hear is repeated by TCP after 1 and 3 seconds; then a new one is quicker.
CONNECT_SECONDS = 5.0
KEEP_ALIVE_SECONDS = 15
# What was sent, a keep-alive at least, and not acknowledged for this long, went to nobody.
SILENCE_SECONDS = 60
CHUNK = 1 << 16

UNREACHED = "does `network.allowSshFrom` have the address that this computer has on the internet?"

# What a foreign exception means: while the connection is made, and once it is there. The first kind that fits counts.
MEANINGS: tuple[tuple[type[Exception], type[ConnectError], type[ConnectError]], ...] = (
    (paramiko.AuthenticationException, LoginRefused, Broken),
    # A machine that boots resets connections, hangs, and talks nonsense. Its thread hands on whatever it met.
    (Exception, Unreachable, Broken),
)


class SshConnection:
    """One connection, logged in. Commands may run on it at once, from several threads."""

    def __init__(self, transport: paramiko.Transport, where: str) -> None:
        self._transport, self._where = transport, where

    @classmethod
    def open(cls, target: Target, timeout: float) -> SshConnection:
        """Connect and log in within so many seconds, to the machine with the target's host key and to no other."""
        # Its threads tell every failure on standard error, which is told here as well.
        logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)
        expected, where = HostKey.parse(target.host_key), f"{target.address}:{target.port}"
        ends = time.monotonic() + timeout
        with _told(f"nobody answers at {where}", UNREACHED):
            link = _call(target.address, target.port, min(timeout, CONNECT_SECONDS))
        with contextlib.ExitStack() as hang_up:
            hang_up.callback(link.close)
            transport = paramiko.Transport(link)
            hang_up.callback(_close, transport)
            _meet(transport, expected, where, ends)
            _log_in(transport, target, where, ends)
            transport.set_keepalive(KEEP_ALIVE_SECONDS)
            hang_up.pop_all()
        return cls(transport, where)

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        """Run it to its end, with nothing to read. One that does not end in time is left to itself."""
        line = command if isinstance(command, str) else shlex.join(command)
        ends = time.monotonic() + timeout
        with _told(f"the connection to {self._where} is lost", is_open=True):
            channel = self._transport.open_session(timeout=timeout)
            with contextlib.closing(channel), _ended(channel, ends) as is_overdue:
                try:
                    stdout, stderr = _outputs(channel, line)
                    exit_code = channel.recv_exit_status()
                except paramiko.SSHException:
                    if not is_overdue():
                        raise
                # Only what ends with both has come whole.
                if not channel.eof_received or channel.exit_status == -1:
                    if is_overdue():
                        raise TimedOut(f"`{line[:80]}` did not end within {timeout:g} s")
                    self._check_alive()
        return Completed(exit_code, _text(stdout), _text(stderr))

    def close(self) -> None:
        """Hang up. To do so twice is no error."""
        _close(self._transport)

    def _check_alive(self) -> None:
        # No exit code: a signal has ended the command, or the connection is lost. Its thread needs a moment to say so.
        self._transport.join(0.3)
        if not self._transport.is_active():
            raise Broken(f"the connection to {self._where} is lost: it ended before the command did")


def _call(address: str, port: int, timeout: float) -> socket.socket:
    link = socket.create_connection((address, port), timeout)
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_SECONDS * 1000)
    return link


def _meet(transport: paramiko.Transport, expected: HostKey, where: str, ends: float) -> None:
    """Agree on keys, and see whose they are."""
    # Only this kind, so that a machine with several keys shows the one that is known.
    transport.get_security_options().key_types = expected.algorithms
    left = max(0.1, ends - time.monotonic())
    transport.banner_timeout = transport.handshake_timeout = left
    with _told(f"{where} answers, but not as an SSH server"):
        try:
            transport.start_client(timeout=left)
            shown = transport.get_remote_server_key().asbytes()
        except IncompatiblePeer as error:
            if "host key" in str(error):
                raise HostKeyMismatch(where, expected.fingerprint, None) from error
            raise
    if shown != expected.blob:
        raise HostKeyMismatch(where, expected.fingerprint, HostKey(expected.kind, shown).fingerprint)


def _log_in(transport: paramiko.Transport, target: Target, where: str, ends: float) -> None:
    user = f"{target.username}@{where}"
    tried: list[str] = []
    keys = Keys(target.identity, max(0.1, ends - time.monotonic()))
    with contextlib.closing(keys), _told(f"{user} cannot log in"):
        for source, key in keys:
            transport.auth_timeout = max(0.1, ends - time.monotonic())
            try:
                if not transport.auth_publickey(target.username, key):
                    return
            except paramiko.AuthenticationException as error:
                if time.monotonic() >= ends:
                    raise Unreachable(f"{user} does not answer the login") from error
                # Machines hang up after a few keys, and while they boot even after the right one.
                if not transport.is_active() and not keys.trouble:
                    kind = LoginRefused if tried else Unreachable
                    raise kind(f"{user} hung up during the login, by key {len(tried) + 1}, from {source}") from error
                if not transport.is_active():
                    break
            tried.append(source)
        raise _refused(user, tried, keys.trouble)


def _refused(user: str, tried: list[str], trouble: UnusableError | None) -> LoginRefused:
    if trouble:
        return KeyUnusable(f"{user}: {trouble}", trouble.help)
    if not tried:
        return KeyUnusable(
            f"{user}: no private key was found, neither in the SSH agent nor in `~/.ssh`",
            "give the path of the public key as `admin.sshPublicKey`, with the private one beside it",
        )
    return LoginRefused(
        f"{user} takes none of {len(tried)} keys, from {', '.join(dict.fromkeys(tried))}",
        "the machine has the public key of `admin.sshPublicKey`; the private one has to be beside it, or in the "
        "SSH agent",
    )


@contextlib.contextmanager
def _ended(channel: paramiko.Channel, ends: float) -> Iterator[Callable[[], bool]]:
    """Close the channel when the time is over, which ends every wait on it; paramiko's own have no end."""
    overdue = threading.Event()

    def end() -> None:
        overdue.set()
        with contextlib.suppress(Exception):  # the connection may be lost at the same time
            channel.close()

    watch = threading.Timer(max(0.0, ends - time.monotonic()), end)
    watch.daemon = True
    watch.start()
    try:
        yield overdue.is_set
    finally:
        watch.cancel()


def _outputs(channel: paramiko.Channel, line: str) -> tuple[bytes, bytes]:
    """Both streams, read at once: they share one window, and the one that nobody reads would stop the other."""
    stdout, stderr = bytearray(), bytearray()

    def read_errors() -> None:
        try:
            while chunk := channel.recv_stderr(CHUNK):
                stderr.extend(chunk)
        except Exception:  # noqa: BLE001, RUF100 a thread has nobody to tell; the other one meets the same
            channel.close()

    channel.exec_command(line.encode("utf-8", "surrogateescape"))
    channel.shutdown_write()
    reader = threading.Thread(target=read_errors, name="ssh-stderr", daemon=True)
    reader.start()
    while chunk := channel.recv(CHUNK):
        stdout.extend(chunk)
    reader.join()
    return bytes(stdout), bytes(stderr)


@contextlib.contextmanager
def _told(what: str, help: str | None = None, *, is_open: bool = False) -> Iterator[None]:  # noqa: A002
    """Whatever is raised in here leaves as one of ours."""
    try:
        yield
    except ConnectError:
        raise
    except Exception as error:
        raise told(error, what, help, is_open=is_open) from error


def told(error: Exception, what: str, help: str | None = None, *, is_open: bool = False) -> ConnectError:  # noqa: A002
    """A foreign exception in our words."""
    opening, later = next(kinds for foreign, *kinds in MEANINGS if isinstance(error, foreign))
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return (later if is_open else opening)(f"{what}: {reason}", help)


def _close(transport: paramiko.Transport) -> None:
    transport.close()
    if transport.is_alive():
        # It looks ten times a second whether it should end.
        transport.join(1)


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")
