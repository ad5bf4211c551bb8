"""What stories of jobs share: the program's bytes, programs that are waited for, and programs on a terminal."""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from tests import program
from tests.e2e.user import User, inherited
from tests.lab import LOCAL, LOCALDOCKER, LabUser
from tests.sshd import eventually

SECONDS = 60.0
# A script's beginning. It stops at gates that the test opens by a file in the folder that all jobs share.
GATES = """
import os, sys, time
share = os.environ["AZUREML_NATIVE_SHARE_DIRECTORY"]
def gate(name):
    ends = time.monotonic() + 100
    while not os.path.exists(os.path.join(share, name)):
        if time.monotonic() > ends:
            sys.exit("nobody opened the gate")
        time.sleep(0.02)
"""
ENDLESS = f"""{GATES}
print("begun")
open("outputs/partial", "w").write("partial")
gate("never")
"""


def spoken(user: LabUser, *words: str, **more: str) -> tuple[int, bytes, bytes]:
    """The exit code, and what was printed, byte for byte."""
    done = program.run(
        *words, cwd=user.workspace, env={**inherited(), **user.variables, **more}, stdin=b"", timeout=110
    )
    assert b"Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def ended(process: "subprocess.Popen[str]", seconds: float = SECONDS) -> tuple[int, str, str]:
    """A program that ends by itself: its exit code and the rest of what it prints."""
    said: dict[int, str] = {}

    def read(number: int, stream: IO[str] | None) -> None:
        said[number] = stream.read() if stream else ""

    # Not by `communicate`, which forgets what was read ahead by whoever read some lines before.
    streams = (process.stdout, process.stderr)
    readers = [threading.Thread(target=read, args=each, daemon=True) for each in enumerate(streams, 1)]
    for reader in readers:
        reader.start()
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGUSR1)  # a forked program then prints what its threads do
        time.sleep(1)
        process.kill()
    for reader in readers:
        reader.join(SECONDS)
    out, errors = said.get(1, ""), said.get(2, "")
    assert process.wait(timeout=SECONDS) != -signal.SIGKILL, f"it did not end: {out[-1000:]} {errors[-30000:]}"
    assert "Traceback" not in errors, errors
    return process.returncode, out, errors


@contextlib.contextmanager
def started(user: LabUser, *words: str, **more: str) -> "Iterator[subprocess.Popen[str]]":
    """The program on its way, for as long as this takes at most."""
    process = user.start(*words, **more)
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=SECONDS)
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()


def killed(process: "subprocess.Popen[str]") -> None:
    """It is gone at once, and nobody was told."""
    process.kill()
    process.wait(timeout=SECONDS)


def reads(process: "subprocess.Popen[str]", line: str) -> None:
    """It prints this next."""
    assert process.stdout is not None
    found = process.stdout.readline()
    assert found == line, (found, ended(process))


def soon(holds: Callable[[], bool], what: str = "", seconds: float = SECONDS) -> None:
    """It holds before long."""
    assert eventually(holds, seconds), f"it never came to be: {what}"


def last_run(user: LabUser) -> dict[str, Any]:
    """The newest run, as it is remembered; empty where there is none."""
    runs = user.does("runs")["runs"]
    return dict(runs[0]) if runs else {}


def shown(user: LabUser, run: str = "last") -> dict[str, Any]:
    """All that is remembered of a run."""
    return dict(user.does("runs", "show", run)["run"])


def submitted(user: LabUser, *words: str, exit_code: int = 0, **more: str) -> dict[str, Any]:
    """The run that `submit` tells of. The option stands before the script, whose own words follow it."""
    done = user("submit", "--json", *words, **more)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return result(done.stdout)


def refused(user: LabUser, *words: str, code: str, exit_code: int = 1, **more: str) -> dict[str, Any]:
    """The one problem that `submit` tells of, with what to do."""
    done = user("submit", "--json", *words, **more)
    assert done.returncode == exit_code, done.stdout + done.stderr
    (diagnostic,) = json.loads(done.stdout)["diagnostics"]
    assert diagnostic["code"] == code, diagnostic
    assert diagnostic.get("help"), f"no next step: {diagnostic}"
    return dict(diagnostic)


def share_of(user: LabUser, name: str) -> Path:
    """The folder that all jobs of a target share."""
    home = user.home if name in {LOCAL, LOCALDOCKER} else user.lab.home
    folder = home / ".azureml/share"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def result(printed: str) -> dict[str, Any]:
    """The run in the one object that was printed."""
    document = json.loads(printed)
    assert document["schemaVersion"] == 1
    return dict(document["run"])


def outputs_of(user: LabUser, run: str) -> Path:
    """Where the outputs of a run are."""
    return user.workspace / ".gpuinfra" / "runs" / run / "outputs"


def contents(folder: Path) -> dict[str, bytes | str]:
    """Files with their content, links with where they lead, by path."""
    return {
        path.relative_to(folder).as_posix(): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


class Terminal:
    """The program on a terminal, with somebody who types."""

    def __init__(
        self, user: LabUser | User, *words: str, patch: Mapping[str, float] | None = None, **variables: str
    ) -> None:
        self.seen = b""
        # With settings of its own it is up to the test which Azure is used.
        cloud = {"GPUINFRA_CLOUD": "sandbox"} if isinstance(user, User) and not variables else {}
        self._terminal, theirs = pty.openpty()
        try:
            self._program = program.Program(
                *words,
                cwd=user.workspace,
                env={**inherited(), **user.variables, **cloud, "TERM": "xterm", **variables},
                patch=patch,
                terminal=True,
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
            )
        finally:
            os.close(theirs)

    def waits_for(self, text: bytes, seconds: float = SECONDS) -> None:
        """This is on the screen before long."""
        deadline = time.monotonic() + seconds
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen[-3000:]
            assert self._read(1.0), self.seen[-3000:]

    def types(self, keys: bytes) -> None:
        """Keys, as they come from a keyboard."""
        os.write(self._terminal, keys)

    def types_until(self, keys: bytes, text: bytes) -> None:
        """Type until this is on the screen: Python does not hear of a Ctrl-C that comes just before it reads."""
        deadline = time.monotonic() + SECONDS
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen[-3000:]
            self.types(keys)
            again = time.monotonic() + 2
            while text not in self.seen and time.monotonic() < again and self._read(0.5):
                pass

    def ends(self, seconds: float = SECONDS) -> int:
        """Its exit code."""
        deadline = time.monotonic() + seconds
        while self._read(1.0):
            assert time.monotonic() < deadline, self.seen[-3000:]
        return int(self._program.wait(timeout=seconds))

    def close(self) -> None:
        """Nothing of it is left."""
        self._program.kill()
        self._program.wait(timeout=SECONDS)
        os.close(self._terminal)

    def _read(self, seconds: float) -> bool:
        """Whether there may be more."""
        ready, _, _ = select.select([self._terminal], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self._terminal, 1 << 16)
        except OSError:  # nobody has the other end any more
            return False
        self.seen += data
        return bool(data)


@contextlib.contextmanager
def on_terminal(user: LabUser | User, *words: str, patch: Mapping[str, float] | None = None) -> Iterator[Terminal]:
    """The program on a terminal for a while; `patch` sets constants in it."""
    made = Terminal(user, *words, patch=patch)
    try:
        yield made
    finally:
        made.close()
