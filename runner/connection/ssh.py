"""A connection by SSH: the login by key or password, commands and processes."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import paramiko

from gpuinfra.models.target import Target
from gpuinfra.runner.connection.handshake import close, greet, left, place, told, translated
from gpuinfra.runner.connection.host_key import HostKey
from gpuinfra.runner.connection.known_hosts import check_known_key
from gpuinfra.runner.connection.port import CHUNK, Completed, Tail
from gpuinfra.runner.connection.private_keys import Keys, UnusableError
from gpuinfra.runner.errors import (
    Broken,
    ConnectError,
    KeyUnusable,
    LoginRefused,
    TimedOut,
    Unreachable,
    interrupts_kept,
)

KEEP_ALIVE_SECONDS = 15
# More than any answer has; a machine that does not stop would fill the memory.
MOST_OUTPUT = 16 << 20

Password = Callable[[], str]
"""Asks for the password, or looks it up: only when it is needed."""


class SshConnection:
    """One connection, logged in. Commands may run on it at once, from several threads."""

    def __init__(self, transport: paramiko.Transport, where: str) -> None:
        self._transport, self._where = transport, where
        self._heard_at = time.monotonic()

    @property
    def heard_at(self) -> float:
        """When something last came from it, on the monotonic clock."""
        return self._heard_at

    @property
    def where(self) -> str:
        """The place, as `203.0.113.7:22`."""
        return self._where

    @property
    def is_open(self) -> bool:
        """Whether it can be used."""
        return self._transport.is_active()

    @classmethod
    def open(
        cls, target: Target, timeout: float, password: Password | None = None, *, is_new: bool = False
    ) -> SshConnection:
        """Connect and log in within `timeout` seconds, to the machine with the target's host key and to no other.

        Raise HostKeyChanged if this computer knows the machine's name, or the target's, by another key, unless the user
        said that the key is new.

        The password is asked for when the keys were refused. A target that has one and no key of its own has no keys
        tried: machines hang up after a few. The time that the asking takes does not count.
        """
        ends = time.monotonic() + timeout
        if not is_new:
            for name in dict.fromkeys((target.machine, target.name)):
                check_known_key(replace(target, machine=name))
        transport = greet(target.address, target.port, HostKey.parse(target.host_key), ends)
        with contextlib.ExitStack() as hang_up:
            hang_up.callback(close, transport)
            _log_in(transport, target, ends, password)
            transport.set_keepalive(KEEP_ALIVE_SECONDS)
            hang_up.pop_all()
        return cls(transport, place(target.address, target.port))

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        """Run it to its end, with nothing to read. One that does not end in time is left to itself."""
        line = command if isinstance(command, str) else shlex.join(command)
        ends = time.monotonic() + timeout
        with translated(f"the connection to {self._where} is lost", is_open=True):
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

    def start(self, command: Sequence[str] | str, *, timeout: float, idle: float | None = None) -> SshProcess:
        """Begin it. It is left to itself when the connection is lost, and sees the end of its input."""
        line = command if isinstance(command, str) else shlex.join(command)
        with translated(f"the connection to {self._where} is lost", is_open=True):
            channel = self._transport.open_session(timeout=timeout)
            with _ended(channel, time.monotonic() + timeout) as is_overdue:
                channel.exec_command(line.encode("utf-8", "surrogateescape"))
                if is_overdue():
                    raise TimedOut(f"{self._where} did not begin `{line[:80]}` within {timeout:g} s")
            channel.settimeout(idle)
            return SshProcess(channel, self._where, idle, self._hear)

    def _hear(self) -> None:
        self._heard_at = time.monotonic()

    def close(self) -> None:
        """Hang up. A second call does nothing."""
        close(self._transport)

    def _check_alive(self) -> None:
        # No exit code: a signal has ended the command, or the connection is lost. Its thread needs a moment to say so.
        self._transport.join(0.3)
        if not self._transport.is_active():
            raise Broken(f"the connection to {self._where} is lost: it ended before the command did")


def _log_in(transport: paramiko.Transport, target: Target, ends: float, password: Password | None) -> None:
    user = f"{target.username}@{place(target.address, target.port)}"
    if target.password and target.identity is None:
        if password is None:
            raise KeyUnusable(f"{user} logs in by a password, and none is available")
    else:
        refusal = _try_keys(transport, target, user, ends)
        if refusal is None:
            return
        if password is None or not transport.is_active():
            raise refusal
    began = time.monotonic()
    secret = password()  # outside of what translates exceptions: the user may press Ctrl-C
    _try_password(transport, target.username, user, secret, ends + time.monotonic() - began)


def _try_keys(transport: paramiko.Transport, target: Target, user: str, ends: float) -> LoginRefused | None:
    """None when one of them was taken."""
    tried: list[str] = []
    keys = Keys(target.identity, left(ends))
    with contextlib.closing(keys), translated(f"{user} cannot log in"):
        for source, key in keys:
            transport.auth_timeout = left(ends)
            try:
                if not transport.auth_publickey(target.username, key):
                    return None
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
        return _refused(user, tried, keys.trouble)


def _try_password(transport: paramiko.Transport, username: str, user: str, secret: str, ends: float) -> None:
    if not _is_sendable(secret):
        raise LoginRefused(f"{user}: the password has characters that no machine takes")
    with translated(f"{user} cannot log in"):
        transport.auth_timeout = left(ends)
        try:
            # Where the machine asks by `keyboard-interactive` instead, paramiko answers its one question with it.
            missing = transport.auth_password(username, secret)
        except paramiko.BadAuthenticationType as error:
            if "keyboard-interactive" in error.allowed_types:
                raise _wrong_password(user) from error
            ways = ", ".join(error.allowed_types) or "nothing"
            raise LoginRefused(f"{user} takes no password, only {ways}", "log in by a key") from error
        except paramiko.SSHException as error:
            if time.monotonic() >= ends:
                raise Unreachable(f"{user} does not answer the login") from error
            raise _wrong_password(user) from error
        if missing:
            raise LoginRefused(f"{user} wants more than a password: {', '.join(missing)}", "log in by a key")


def _is_sendable(secret: str) -> bool:
    # Found out here, for the exception of an encoder carries the whole text that it was given.
    try:
        secret.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong_password(user: str) -> LoginRefused:
    return LoginRefused(
        f"{user} does not take the password",
        "look for a slip in the password or in the user's name; a machine that is set up for keys alone takes none",
    )


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
    """Both streams, read at once: they share one window, and a stream that is not read would stop the other."""
    stdout, stderr = bytearray(), bytearray()

    def is_too_much() -> bool:
        return len(stdout) + len(stderr) > MOST_OUTPUT

    def read(receive: Callable[[int], bytes], into: bytearray) -> None:
        while not is_too_much() and (chunk := receive(CHUNK)):
            into.extend(chunk)
        if is_too_much():
            channel.close()  # which ends the other one's wait as well

    def read_errors() -> None:
        try:
            read(channel.recv_stderr, stderr)
        except Exception:  # noqa: BLE001, RUF100 the other thread meets the same
            channel.close()

    channel.exec_command(line.encode("utf-8", "surrogateescape"))
    channel.shutdown_write()
    reader = threading.Thread(target=read_errors, name="ssh-stderr", daemon=True)
    reader.start()
    read(channel.recv, stdout)
    reader.join()
    if is_too_much():
        raise ConnectError(
            f"the machine said more than {MOST_OUTPUT >> 20} MiB to `{line[:80]}`, and was not heard to the end",
            "look at what the start-up files of the user's shell there print, as `~/.bashrc`",
        )
    return bytes(stdout), bytes(stderr)


def _text(content: bytes) -> str:
    return content.decode("utf-8", "replace")


class SshProcess:
    """Its streams, and its end."""

    def __init__(
        self, channel: paramiko.Channel, where: str, idle: float | None, heard: Callable[[], None] = lambda: None
    ) -> None:
        """`heard` is called whenever something of what it prints has come."""
        self._channel, self._where, self._idle, self._heard = channel, where, idle, heard
        self._tail = Tail()
        # Both streams share one window: a stream that is not read would stop the other.
        threading.Thread(target=self._read_errors, name="ssh-stderr", daemon=True).start()

    @property
    def channel(self) -> paramiko.Channel:
        """The channel, as a socket."""
        return self._channel

    def write(self, data: bytes | memoryview) -> None:
        """Give it all of this to read."""
        with self._translated():
            self._channel.sendall(data)  # type: ignore[arg-type] # a view is as good, and no copy

    def end_input(self) -> None:
        """There is no more to read."""
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):  # then it has ended already
            self._channel.shutdown_write()

    def read(self, most: int = CHUNK) -> bytes:
        """Some of what it prints; empty at the end."""
        with self._translated():
            data = self._channel.recv(most)
            if not data and not self._channel.eof_received and not self._has_exited():
                # No end was announced: the connection is lost, or it was closed here.
                raise Broken(f"the connection to {self._where} is lost")
            self._heard()
            return data

    def _has_exited(self) -> bool:
        """Whether its exit code has come: some servers then close the channel without announcing the end of output."""
        return self._channel.exit_status != -1 and self._channel.get_transport().is_active()

    @property
    def errors(self) -> str:
        """The end of what it has said on standard error so far."""
        return self._tail.text

    def idle(self, seconds: float | None) -> None:
        """How long it may get nowhere from now on."""
        self._idle = seconds
        self._channel.settimeout(seconds)

    def wait(self, timeout: float) -> int:
        """Its exit code."""
        if not self._channel.status_event.wait(timeout):
            raise TimedOut(f"a command on {self._where} did not end within {timeout:g} s")
        if self._channel.exit_status == -1 and not self._channel.get_transport().is_active():
            raise Broken(f"the connection to {self._where} is lost")
        return self._channel.exit_status

    def close(self) -> None:
        """Let go of it."""
        with contextlib.suppress(Exception):  # the connection may be lost at the same time
            self._channel.close()

    def _read_errors(self) -> None:
        with contextlib.suppress(Exception):  # the reader of the other stream meets the same
            while True:
                try:
                    data = self._channel.recv_stderr(CHUNK)
                except TimeoutError:
                    continue
                if not data:
                    return
                self._tail.add(data)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with interrupts_kept():
                yield
        except ConnectError:
            raise
        except TimeoutError as error:
            raise TimedOut(f"{self._where} made no progress for {self._idle:g} s") from error
        except Exception as error:
            raise told(error, f"the connection to {self._where} is lost", is_open=True) from error
