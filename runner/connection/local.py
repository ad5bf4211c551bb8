"""Run commands on this computer through the same port as on remote machines."""

from __future__ import annotations

import contextlib
import math
import os
import select
import shlex
import subprocess
import threading
from collections.abc import Mapping, Sequence

from gpuinfra.runner.connection.port import CHUNK, Completed, Process, Tail
from gpuinfra.runner.errors import Broken, TimedOut, Unreachable

WHERE = "this computer"
SHELL = "/bin/sh"


class LocalConnection:
    """Runs commands as child processes. A command that must outlive this process has to detach itself."""

    where = WHERE
    is_open = True
    last_received_at = math.inf

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        """The environment of commands; None to inherit this process's environment."""

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        arguments = _arguments(command)
        try:
            completed = subprocess.run(  # noqa: S603 commands of the user, on the user's computer
                arguments,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=False,
                start_new_session=True,
                env=self._environment,
            )
        except subprocess.TimeoutExpired as error:
            raise TimedOut(f"`{shlex.join(arguments)[:80]}` did not end within {timeout:g} s") from error
        except FileNotFoundError:
            return Completed(127, "", f"{arguments[0]}: not found")
        except (OSError, ValueError) as error:
            raise Unreachable(f"`{arguments[0]}` cannot be run: {error}") from error
        stdout, stderr = (each.decode("utf-8", "replace") for each in (completed.stdout, completed.stderr))
        return Completed(max(completed.returncode, -1), stdout, stderr)

    def start(self, command: Sequence[str] | str, *, timeout: float, idle: float | None = None) -> Process:  # noqa: ARG002
        """Start a command in a new session, so that Ctrl-C does not reach it."""
        arguments = _arguments(command)
        try:
            child = subprocess.Popen(  # noqa: S603
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                env=self._environment,
            )
        except (OSError, ValueError) as error:
            raise Unreachable(f"`{arguments[0]}` cannot be run: {error}") from error
        return LocalProcess(child, idle)

    def close(self) -> None:
        """Do nothing: there is no connection."""


def _arguments(command: Sequence[str] | str) -> list[str]:
    return [SHELL, "-c", command] if isinstance(command, str) else list(command)


class LocalProcess:
    """A running child process with its streams. Implements `Process`."""

    def __init__(self, child: subprocess.Popen[bytes], idle: float | None) -> None:
        self._child, self._idle = child, idle
        self._tail = Tail()
        self._reader = threading.Thread(target=self._read_errors, name="local-stderr", daemon=True)
        self._reader.start()

    def write(self, data: bytes | memoryview) -> None:
        stdin, view = self._child.stdin, memoryview(data)
        assert stdin is not None  # noqa: S101 opened as a pipe
        try:
            while view:
                self._wait_for([], [stdin.fileno()])
                # At most what a pipe accepts at once, so that the write does not block without a timeout.
                view = view[os.write(stdin.fileno(), view[: select.PIPE_BUF]) :]
        except (OSError, ValueError) as error:
            raise Broken(f"the command no longer reads its input: {error}") from error

    def end_input(self) -> None:
        with contextlib.suppress(OSError):
            if self._child.stdin:
                self._child.stdin.close()

    def read(self, max_bytes: int = CHUNK) -> bytes:
        stdout = self._child.stdout
        assert stdout is not None  # noqa: S101 opened as a pipe
        try:
            self._wait_for([stdout.fileno()], [])
            return os.read(stdout.fileno(), max_bytes)
        except (OSError, ValueError) as error:
            raise Broken(f"the output of the command cannot be read: {error}") from error

    @property
    def errors(self) -> str:
        return self._tail.text

    def set_idle_timeout(self, seconds: float | None) -> None:
        self._idle = seconds

    def wait(self, timeout: float) -> int:
        try:
            code = self._child.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimedOut(f"a command did not end within {timeout:g} s") from error
        self._reader.join(1)
        return max(code, -1)

    def close(self) -> None:
        """Close the streams. A child that keeps running is waited for in the background."""
        for stream in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):
                if stream:
                    stream.close()
        if self._child.poll() is None:
            threading.Thread(target=self._child.wait, name="local-end", daemon=True).start()

    def _read_errors(self) -> None:
        stderr = self._child.stderr
        assert stderr is not None  # noqa: S101 opened as a pipe
        with contextlib.suppress(OSError, ValueError), stderr:
            while data := os.read(stderr.fileno(), CHUNK):
                self._tail.add(data)

    def _wait_for(self, reading: list[int], writing: list[int]) -> None:
        if not any(select.select(reading, writing, [], self._idle)):
            raise TimedOut(f"a command made no progress for {self._idle:g} s")
