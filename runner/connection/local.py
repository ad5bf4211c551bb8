"""This computer, as a machine that takes commands."""

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
    """Commands run as children of this process; those that are to outlive it have to detach themselves."""

    where = WHERE
    is_open = True
    heard_at = math.inf

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        """The environment of commands; None for this process's own."""

    def run(self, command: Sequence[str] | str, *, timeout: float) -> Completed:
        """Run it to its end, with nothing to read."""
        words = _words(command)
        try:
            done = subprocess.run(  # noqa: S603 the user's own commands, on the user's own computer
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout,
                check=False,
                start_new_session=True,
                env=self._environment,
            )
        except subprocess.TimeoutExpired as error:
            raise TimedOut(f"`{shlex.join(words)[:80]}` did not end within {timeout:g} s") from error
        except FileNotFoundError:
            return Completed(127, "", f"{words[0]}: not found")
        except (OSError, ValueError) as error:
            raise Unreachable(f"`{words[0]}` cannot be run: {error}") from error
        code = done.returncode if done.returncode >= 0 else -1
        return Completed(code, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))

    def start(self, command: Sequence[str] | str, *, timeout: float, idle: float | None = None) -> Process:  # noqa: ARG002
        """Begin it, in a session of its own: Ctrl-C is for this program alone."""
        words = _words(command)
        try:
            started = subprocess.Popen(  # noqa: S603
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                env=self._environment,
            )
        except (OSError, ValueError) as error:
            raise Unreachable(f"`{words[0]}` cannot be run: {error}") from error
        return LocalProcess(started, idle)

    def close(self) -> None:
        """Nothing to hang up."""


def _words(command: Sequence[str] | str) -> list[str]:
    return [SHELL, "-c", command] if isinstance(command, str) else list(command)


class LocalProcess:
    """A child's streams, and its end."""

    def __init__(self, child: subprocess.Popen[bytes], idle: float | None) -> None:
        self._child, self._idle = child, idle
        self._tail = Tail()
        self._reader = threading.Thread(target=self._read_errors, name="local-stderr", daemon=True)
        self._reader.start()

    def write(self, data: bytes | memoryview) -> None:
        """Give it all of this to read."""
        stdin, view = self._child.stdin, memoryview(data)
        assert stdin is not None  # noqa: S101 requested above
        try:
            while view:
                self._wait_for([], [stdin.fileno()])
                # No more than a pipe takes at once, so that the wait above is the only one.
                view = view[os.write(stdin.fileno(), view[: select.PIPE_BUF]) :]
        except (OSError, ValueError) as error:
            raise Broken(f"the command has stopped to read: {error}") from error

    def end_input(self) -> None:
        """There is no more to read."""
        with contextlib.suppress(OSError):
            if self._child.stdin:
                self._child.stdin.close()

    def read(self, most: int = CHUNK) -> bytes:
        """Some of what it prints; empty at the end."""
        stdout = self._child.stdout
        assert stdout is not None  # noqa: S101 requested above
        try:
            self._wait_for([stdout.fileno()], [])
            return os.read(stdout.fileno(), most)
        except (OSError, ValueError) as error:
            raise Broken(f"the command cannot be heard: {error}") from error

    @property
    def errors(self) -> str:
        """The end of what it has said on standard error so far."""
        return self._tail.text

    def idle(self, seconds: float | None) -> None:
        """How long it may get nowhere from now on."""
        self._idle = seconds

    def wait(self, timeout: float) -> int:
        """Its exit code."""
        try:
            code = self._child.wait(timeout)
        except subprocess.TimeoutExpired as error:
            raise TimedOut(f"a command did not end within {timeout:g} s") from error
        self._reader.join(1)
        return max(code, -1)

    def close(self) -> None:
        """Let go of it. One that does not end by that is collected in the background."""
        for stream in (self._child.stdin, self._child.stdout):
            with contextlib.suppress(OSError):
                if stream:
                    stream.close()
        if self._child.poll() is None:
            threading.Thread(target=self._child.wait, name="local-end", daemon=True).start()

    def _read_errors(self) -> None:
        stderr = self._child.stderr
        assert stderr is not None  # noqa: S101 requested above
        with contextlib.suppress(OSError, ValueError), stderr:
            while data := os.read(stderr.fileno(), CHUNK):
                self._tail.add(data)

    def _wait_for(self, reading: list[int], writing: list[int]) -> None:
        if not any(select.select(reading, writing, [], self._idle)):
            raise TimedOut(f"a command made no progress for {self._idle:g} s")
