"""The installed program on its way, with or without a terminal, and somebody who has had enough of it."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandbox.running import process
from tests.integration.provision.kill_help import World

PROGRAM = Path(sys.executable).with_name("gpuinfra")
# Tests that run in the background ignore Ctrl-C, and so would all that they start.
HEARING = ("env", "--default-signal=INT")
CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass
class Ended:
    """What was left of it."""

    code: int
    said: str
    """Both outputs, as they came."""
    seconds: float
    """Since it was last told to end."""


class Program:
    """`gpuinfra …` in a world's workspace. Its outputs are one: a pipe, or a terminal of its own."""

    def __init__(self, world: World, *words: str, terminal: bool = False) -> None:
        self.terminal, self._told = terminal, time.monotonic()
        self._said = b""
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        variables = {**kept, "HOME": str(world.folder), process.HOME: str(world.home), "GPUINFRA_CLOUD": "sandbox"}
        if terminal:
            self._output, inner = os.openpty()
            self.before = termios.tcgetattr(inner)
            # Ctrl-C on a terminal goes to the processes of its session: this one is to be in it.
            command = ["setsid", "--ctty", *HEARING, str(PROGRAM), *words]
            stdin, variables = inner, {**variables, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"}
        else:
            self._output, inner = os.pipe()
            command, stdin = [*HEARING, str(PROGRAM), *words], subprocess.DEVNULL
        try:
            self.process = subprocess.Popen(
                command, cwd=world.folder, env=variables, stdin=stdin, stdout=inner, stderr=inner
            )
        finally:
            self._inner = inner
            if not terminal:
                os.close(inner)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        os.close(self._output)
        if self.terminal:
            os.close(self._inner)

    def read(self, seconds: float) -> bool:
        """Read what comes within a while; False where there is nothing more to come."""
        if not select.select([self._output], [], [], seconds)[0]:
            return True
        try:
            read = os.read(self._output, 65536)
        except OSError:  # a terminal whose other side is closed
            read = b""
        self._said += read
        return bool(read)

    @property
    def said(self) -> str:
        return self._said.decode("utf-8", "replace")

    @property
    def plain(self) -> str:
        """Without what moves the cursor and sets colours."""
        return CONTROL_SEQUENCE.sub("", self.said).replace("\r", "")

    def wait_for(self, words: str, seconds: float = 60) -> None:
        """Until it has said this."""
        deadline = time.monotonic() + seconds
        while words not in self.plain:
            assert time.monotonic() < deadline, f"it did not say {words!r}: {self.plain}"
            assert self.process.poll() is None or self.read(0), f"it ended: {self.plain}"
            self.read(0.05)

    def tell(self, number: signal.Signals = signal.SIGINT) -> None:
        """Ctrl-C, or another signal."""
        self._told = time.monotonic()
        if self.terminal and number is signal.SIGINT:
            os.write(self._output, b"\x03")
        else:
            self.process.send_signal(number)

    def has_ended(self, seconds: float) -> bool:
        """Whether it is over within a while."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read(0.02)
        return self.process.poll() is not None

    def end(self, seconds: float) -> Ended:
        """What is left of it after so many seconds at most; it is killed where it goes on."""
        is_over = self.has_ended(self._told + seconds - time.monotonic())
        took = time.monotonic() - self._told
        if not is_over:
            self.process.kill()
        self.process.wait(10)
        while self.read(0.1) and select.select([self._output], [], [], 0)[0]:
            pass
        assert is_over, f"it went on for {took:.1f} s after it was told to end:\n{self.plain}"
        return Ended(self.process.returncode, self.plain, took)

    def after(self) -> list[object]:
        """The terminal's settings."""
        found: list[object] = termios.tcgetattr(self._inner)
        return found


@contextlib.contextmanager
def program(world: World, *words: str, terminal: bool = False) -> Iterator[Program]:
    """It, and its end at the latest when the test ends."""
    started = Program(world, *words, terminal=terminal)
    try:
        yield started
    finally:
        started.close()
