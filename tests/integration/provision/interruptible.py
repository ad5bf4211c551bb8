"""The program with its output on a pipe or a terminal, for tests that interrupt it."""

import contextlib
import os
import re
import select
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.integration.provision.harness import END_SECONDS, WHILE_HELD_SECONDS, Harness
from tests.program import PROGRAM, Program

CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True)
class Ended:
    """A program that has ended."""

    code: int
    text: str
    """Both outputs in one, without control sequences."""


class InterruptibleProgram:
    """`gpuinfra …` in the harness's workspace. Both outputs are one pipe, or one terminal of its own."""

    def __init__(self, harness: Harness, *words: str, terminal: bool = False) -> None:
        self.terminal = terminal
        self._output_bytes = b""
        self.process: subprocess.Popen[Any]
        if terminal:
            self._output, self._inner = os.openpty()
            self.settings_before = termios.tcgetattr(self._inner)
            variables = {**harness.variables, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
            # Ctrl-C on a terminal goes to the processes of its session, so this one must be in it.
            self.process = subprocess.Popen(
                ["setsid", "--ctty", str(PROGRAM), *words],
                cwd=harness.folder,
                env=variables,
                stdin=self._inner,
                stdout=self._inner,
                stderr=self._inner,
            )
        else:
            self._output, inner = os.pipe()
            try:
                self.process = Program(
                    *words,
                    cwd=harness.folder,
                    env=harness.variables,
                    stdin=subprocess.DEVNULL,
                    stdout=inner,
                    stderr=inner,
                    start_new_session=True,
                )
            finally:
                os.close(inner)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(END_SECONDS)
        os.close(self._output)
        if self.terminal:
            os.close(self._inner)

    @property
    def output(self) -> str:
        return self._output_bytes.decode("utf-8", "replace")

    @property
    def text(self) -> str:
        """The output without control sequences."""
        return CONTROL_SEQUENCE.sub("", self.output).replace("\r", "")

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until the condition holds, while the program runs."""
        deadline = time.monotonic() + END_SECONDS
        while not condition():
            assert time.monotonic() < deadline, f"not within {END_SECONDS:.0f} s: {what}\n{self.text}"
            assert not self.has_ended or self._read(0), f"it ended before: {what}\n{self.text}"
            self._read(0.03)

    def wait_for_text(self, text: str) -> None:
        self.wait_for(lambda: text in self.text, f"prints {text!r}")

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Press Ctrl-C, or send another signal."""
        if self.terminal and number is signal.SIGINT:
            os.write(self._output, b"\x03")
        else:
            self.process.send_signal(number)

    def runs_for(self, seconds: float) -> bool:
        """Return whether it still runs after this many seconds."""
        deadline = time.monotonic() + seconds
        while not self.has_ended and time.monotonic() < deadline:
            self._read(0.03)
        return not self.has_ended

    def end(self, seconds: float = WHILE_HELD_SECONDS) -> Ended:
        """Wait for its end. A program that runs longer is killed and fails the test."""
        deadline = time.monotonic() + seconds
        while not self.has_ended and time.monotonic() < deadline:
            self._read(0.03)
        in_time = self.has_ended
        if not in_time:
            self.process.send_signal(signal.SIGUSR1)  # a forked program then prints what its threads do
            self._read(1.0)
            self.process.kill()
        self.process.wait(END_SECONDS)
        while self._read(0.1) and select.select([self._output], [], [], 0)[0]:
            pass
        assert in_time, f"it did not end within {seconds:.0f} s:\n{self.text}"
        return Ended(self.process.returncode, self.text)

    def terminal_settings(self) -> list[object]:
        found: list[object] = termios.tcgetattr(self._inner)
        return found

    def _read(self, seconds: float) -> bool:
        """Read what arrives within this many seconds. False at the end of the output."""
        if not select.select([self._output], [], [], seconds)[0]:
            return True
        try:
            read = os.read(self._output, 65536)
        except OSError:  # a terminal whose other end is closed
            read = b""
        self._output_bytes += read
        return bool(read)


@contextlib.contextmanager
def started(harness: Harness, *words: str, terminal: bool = False) -> Iterator[InterruptibleProgram]:
    """Start a command, and end it at the latest when the test ends."""
    program = InterruptibleProgram(harness, *words, terminal=terminal)
    try:
        yield program
    finally:
        program.close()
