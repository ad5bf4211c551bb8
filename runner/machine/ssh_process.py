"""A command that runs at the other end of an SSH channel."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import paramiko

from gpuinfra.runner.machine.connection import CHUNK, Broken, ConnectError, TimedOut
from gpuinfra.runner.machine.errors_tail import Tail
from gpuinfra.runner.machine.handshake import told
from gpuinfra.runner.machine.interrupts import interrupts_kept


class SshProcess:
    """Its streams, and its end."""

    def __init__(
        self, channel: paramiko.Channel, where: str, idle: float | None, heard: Callable[[], None] = lambda: None
    ) -> None:
        """`heard` is called whenever something of what it prints has come."""
        self._channel, self._where, self._idle, self._heard = channel, where, idle, heard
        self._tail = Tail()
        # Both streams share one window: what nobody reads would stop the other.
        threading.Thread(target=self._read_errors, name="ssh-stderr", daemon=True).start()

    @property
    def channel(self) -> paramiko.Channel:
        """For those who need a socket."""
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
                # No end was announced: the connection is lost, or somebody here has closed it.
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
        with contextlib.suppress(Exception):  # whoever reads the other stream meets the same
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
