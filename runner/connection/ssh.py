"""Connect by SSH: log in with a key or a password, and run commands."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import paramiko

from gpuinfra.models.target import Target
from gpuinfra.runner.connection.handshake import (
    close,
    connect_errors,
    host_and_port,
    open_transport,
    seconds_left,
    to_connect_error,
)
from gpuinfra.runner.connection.known_hosts import HostKey, check_known_key
from gpuinfra.runner.connection.port import CHUNK, Completed, Tail
from gpuinfra.runner.connection.private_keys import LoginKeys, UnusableKeyError
from gpuinfra.runner.errors import (
    Broken,
    ConnectError,
    KeyUnusable,
    LoginRefused,
    TimedOut,
    Unreachable,
    preserve_interrupt,
)

KEEP_ALIVE_SECONDS = 15
LOOPBACK = "127.0.0.1"
# More than any command prints; a machine with endless output would fill the memory.
MAX_OUTPUT = 16 << 20

Password = Callable[[], str]
"""Returns the password, which may ask the user. Called only if it is needed."""


class SshConnection:
    """An SSH connection after the login. Several threads may run commands at the same time."""

    def __init__(self, transport: paramiko.Transport, where: str) -> None:
        self._transport, self._where = transport, where
        self._last_received_at = time.monotonic()

    @property
    def last_received_at(self) -> float:
        return self._last_received_at

    @property
    def where(self) -> str:
        return self._where

    @property
    def is_open(self) -> bool:
        return self._transport.is_active()

    @classmethod
    def open(
        cls, target: Target, timeout: float, password: Password | None = None, *, is_new: bool = False
    ) -> SshConnection:
        """Connect and log in within `timeout` seconds. Raise HostKeyMismatch if the machine has another host key.

        Raise HostKeyChanged if this computer recorded another key for the name of the machine or the target, unless
        the user confirmed that the key is new (`is_new`).

        `password` is called after the machine refused the keys; its duration does not count. For a target with a
        password but no identity, no keys are tried: machines close the connection after a few.
        """
        deadline = time.monotonic() + timeout
        if not is_new:
            for name in dict.fromkeys((target.machine, target.name)):
                check_known_key(replace(target, machine=name))
        transport = open_transport(target.address, target.port, HostKey.parse(target.host_key), deadline)
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(close, transport)
            _log_in(transport, target, deadline, password)
            transport.set_keepalive(KEEP_ALIVE_SECONDS)
            cleanup.pop_all()
        return cls(transport, host_and_port(target.address, target.port))

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        """Run a command without input to its end. A command that times out may keep running."""
        line = command if isinstance(command, str) else shlex.join(command)
        deadline = time.monotonic() + timeout
        with connect_errors(f"the connection to {self._where} is lost", is_open=True):
            channel = self._transport.open_session(timeout=timeout)
            with contextlib.closing(channel), _closed_at(channel, deadline) as is_overdue:
                try:
                    stdout, stderr = _read_outputs(channel, line)
                    exit_code = channel.recv_exit_status()
                except paramiko.SSHException:
                    if not is_overdue():
                        raise
                # The output is complete only with an end of file and an exit code.
                if not channel.eof_received or channel.exit_status == -1:
                    if is_overdue():
                        raise TimedOut(f"`{line[:80]}` did not end within {timeout:g} s")
                    self._check_alive()
        return Completed(exit_code, stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace"))

    def start(self, command: Sequence[str] | str, *, timeout: float, idle: float | None = None) -> SshProcess:
        """Start a command. If the connection is lost, its input ends and it keeps running."""
        line = command if isinstance(command, str) else shlex.join(command)
        with connect_errors(f"the connection to {self._where} is lost", is_open=True):
            channel = self._transport.open_session(timeout=timeout)
            with _closed_at(channel, time.monotonic() + timeout) as is_overdue:
                channel.exec_command(line.encode("utf-8", "surrogateescape"))
                if is_overdue():
                    raise TimedOut(f"{self._where} did not start `{line[:80]}` within {timeout:g} s")
            channel.settimeout(idle)
            return SshProcess(channel, self._where, idle, self._note_received)

    def tunnel(self, port: int, *, timeout: float) -> paramiko.Channel:
        """Connect to a port on the machine's loopback interface."""
        with connect_errors(f"{self._where} does not open a connection to its port {port}", is_open=True):
            return self._transport.open_channel(
                "direct-tcpip", dest_addr=(LOOPBACK, port), src_addr=(LOOPBACK, 0), timeout=timeout
            )

    def _note_received(self) -> None:
        self._last_received_at = time.monotonic()

    def close(self) -> None:
        close(self._transport)

    def _check_alive(self) -> None:
        # Without an exit code, either a signal ended the command or the connection is lost. paramiko notices the loss
        # a moment later.
        self._transport.join(0.3)
        if not self._transport.is_active():
            raise Broken(f"the connection to {self._where} is lost: it ended before the command did")


def _log_in(transport: paramiko.Transport, target: Target, deadline: float, password: Password | None) -> None:
    user = f"{target.username}@{host_and_port(target.address, target.port)}"
    if target.password and target.identity is None:
        if password is None:
            raise KeyUnusable(f"{user} logs in with a password, and none is available")
    else:
        refusal = _try_keys(transport, target, user, deadline)
        if refusal is None:
            return
        if password is None or not transport.is_active():
            raise refusal
    asked_at = time.monotonic()
    secret = password()  # outside of `connect_errors`: the user may press Ctrl-C
    _try_password(transport, target.username, user, secret, deadline + time.monotonic() - asked_at)


def _try_keys(transport: paramiko.Transport, target: Target, user: str, deadline: float) -> LoginRefused | None:
    """Return None if the machine accepted a key, or else the error."""
    tried: list[str] = []
    keys = LoginKeys(target.identity, seconds_left(deadline))
    with contextlib.closing(keys), connect_errors(f"{user} cannot log in"):
        for source, key in keys:
            transport.auth_timeout = seconds_left(deadline)
            try:
                if not transport.auth_publickey(target.username, key):
                    return None
            except paramiko.AuthenticationException as error:
                if time.monotonic() >= deadline:
                    raise Unreachable(f"{user} does not answer the login") from error
                # Machines close the connection after a few keys, and while they boot even after the right one.
                if not transport.is_active() and not keys.identity_error:
                    kind = LoginRefused if tried else Unreachable
                    reason = f"closed the connection during the login with key {len(tried) + 1}, from {source}"
                    raise kind(f"{user} {reason}") from error
                if not transport.is_active():
                    break
            tried.append(source)
        return _keys_refused(user, tried, keys.identity_error)


def _try_password(transport: paramiko.Transport, username: str, user: str, secret: str, deadline: float) -> None:
    if not _is_sendable(secret):
        raise LoginRefused(f"{user}: the password has characters that SSH does not support")
    with connect_errors(f"{user} cannot log in"):
        transport.auth_timeout = seconds_left(deadline)
        try:
            # If the machine uses `keyboard-interactive` instead, paramiko answers its question with the password.
            missing = transport.auth_password(username, secret)
        except paramiko.BadAuthenticationType as error:
            if "keyboard-interactive" in error.allowed_types:
                raise _wrong_password(user) from error
            methods = ", ".join(error.allowed_types) or "nothing"
            raise LoginRefused(f"{user} accepts no password, only {methods}", "log in with a key") from error
        except paramiko.SSHException as error:
            if time.monotonic() >= deadline:
                raise Unreachable(f"{user} does not answer the login") from error
            raise _wrong_password(user) from error
        if missing:
            raise LoginRefused(f"{user} requires more than a password: {', '.join(missing)}", "log in with a key")


def _is_sendable(secret: str) -> bool:
    # Checked here, because the exception of a later encoder would contain the password.
    try:
        secret.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wrong_password(user: str) -> LoginRefused:
    return LoginRefused(
        f"{user} does not accept the password",
        "check the password and the user name; a machine that accepts only keys refuses every password",
    )


def _keys_refused(user: str, tried: list[str], identity_error: UnusableKeyError | None) -> LoginRefused:
    if identity_error:
        return KeyUnusable(f"{user}: {identity_error}", identity_error.help)
    if not tried:
        return KeyUnusable(
            f"{user}: no private key was found in the SSH agent or in `~/.ssh`",
            "set `admin.sshPublicKey` to the path of a public key with the private key next to it",
        )
    return LoginRefused(
        f"{user} accepts none of {len(tried)} keys, from {', '.join(dict.fromkeys(tried))}",
        "the machine has the public key of `admin.sshPublicKey`; the private key must be next to it, or in the "
        "SSH agent",
    )


@contextlib.contextmanager
def _closed_at(channel: paramiko.Channel, deadline: float) -> Iterator[Callable[[], bool]]:
    """Close the channel at the deadline, which ends all waits on it; paramiko's waits have no timeout.

    Yield a function that returns whether the deadline has passed.
    """
    overdue = threading.Event()

    def close_channel() -> None:
        overdue.set()
        with contextlib.suppress(Exception):  # the connection may be lost at the same time
            channel.close()

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), close_channel)
    timer.daemon = True
    timer.start()
    try:
        yield overdue.is_set
    finally:
        timer.cancel()


def _read_outputs(channel: paramiko.Channel, line: str) -> tuple[bytes, bytes]:
    """Run a command and return its output and errors. Both are read in parallel because they share one window."""
    stdout, stderr = bytearray(), bytearray()

    def is_too_much() -> bool:
        return len(stdout) + len(stderr) > MAX_OUTPUT

    def read(receive: Callable[[int], bytes], into: bytearray) -> None:
        while not is_too_much() and (chunk := receive(CHUNK)):
            into.extend(chunk)
        if is_too_much():
            channel.close()  # which also ends the other wait

    def read_errors() -> None:
        try:
            read(channel.recv_stderr, stderr)
        except Exception:  # noqa: BLE001, RUF100 the other thread gets the same error
            channel.close()

    channel.exec_command(line.encode("utf-8", "surrogateescape"))
    channel.shutdown_write()
    reader = threading.Thread(target=read_errors, name="ssh-stderr", daemon=True)
    reader.start()
    read(channel.recv, stdout)
    reader.join()
    if is_too_much():
        raise ConnectError(
            f"the machine printed more than {MAX_OUTPUT >> 20} MiB for `{line[:80]}`",
            "check what the start-up files of the user's shell print, such as `~/.bashrc` on the machine",
        )
    return bytes(stdout), bytes(stderr)


class SshProcess:
    """A running command with its streams. Implements `Process`."""

    def __init__(
        self, channel: paramiko.Channel, where: str, idle: float | None, on_data: Callable[[], None] = lambda: None
    ) -> None:
        """`on_data` is called whenever output arrives."""
        self._channel, self._where, self._idle, self._on_data = channel, where, idle, on_data
        self._tail = Tail()
        # Both streams share one window: if one were not read, the other would stop.
        threading.Thread(target=self._read_errors, name="ssh-stderr", daemon=True).start()

    def write(self, data: bytes | memoryview) -> None:
        with self._connect_errors():
            self._channel.sendall(data)  # type: ignore[arg-type] # a memoryview works, without a copy

    def end_input(self) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):  # the command has already ended
            self._channel.shutdown_write()

    def read(self, max_bytes: int = CHUNK) -> bytes:
        with self._connect_errors():
            data = self._channel.recv(max_bytes)
            if not data and not self._channel.eof_received and not self._has_exited():
                # No end of file: the connection is lost, or was closed here.
                raise Broken(f"the connection to {self._where} is lost")
            self._on_data()
            return data

    def _has_exited(self) -> bool:
        """Return whether the exit code has arrived: some servers then close the channel without an end of file."""
        return self._channel.exit_status != -1 and self._channel.get_transport().is_active()

    @property
    def errors(self) -> str:
        return self._tail.text

    def set_idle_timeout(self, seconds: float | None) -> None:
        self._idle = seconds
        self._channel.settimeout(seconds)

    def wait(self, timeout: float) -> int:
        if not self._channel.status_event.wait(timeout):
            raise TimedOut(f"a command on {self._where} did not end within {timeout:g} s")
        if self._channel.exit_status == -1 and not self._channel.get_transport().is_active():
            raise Broken(f"the connection to {self._where} is lost")
        return self._channel.exit_status

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the connection may be lost at the same time
            self._channel.close()

    def _read_errors(self) -> None:
        with contextlib.suppress(Exception):  # the reader of the other stream gets the same error
            while True:
                try:
                    data = self._channel.recv_stderr(CHUNK)
                except TimeoutError:
                    continue
                if not data:
                    return
                self._tail.add(data)

    @contextlib.contextmanager
    def _connect_errors(self) -> Iterator[None]:
        try:
            with preserve_interrupt():
                yield
        except ConnectError:
            raise
        except TimeoutError as error:
            raise TimedOut(f"{self._where} made no progress for {self._idle:g} s") from error
        except Exception as error:
            raise to_connect_error(error, f"the connection to {self._where} is lost", is_open=True) from error
