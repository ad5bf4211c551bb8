"""Helpers for tests of jobs: the program's output as bytes, running programs, and programs on a terminal."""

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
# Start of a script: it stops at gates, which the test opens with a file in the shared folder of all jobs.
GATES = """
import os, sys, time
share = os.environ["AZUREML_NATIVE_SHARE_DIRECTORY"]
def gate(name):
    ends = time.monotonic() + 100
    while not os.path.exists(os.path.join(share, name)):
        if time.monotonic() > ends:
            sys.exit("the gate was not opened")
        time.sleep(0.02)
"""
# Writes a file, whole from the moment at which it exists, and only then prints `begun`: tests end the job after either,
# so SIGTERM waits for both.
ENDLESS = f"""{GATES}
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
with open("outputs/.partial", "w") as file:
    file.write("partial")
os.rename("outputs/.partial", "outputs/partial")
print("begun")
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
gate("never")
"""


def run_for_bytes(user: LabUser, *words: str, **more: str) -> tuple[int, bytes, bytes]:
    """Run a command, and return its exit code, stdout and stderr as bytes."""
    done = program.run(
        *words, cwd=user.workspace, env={**inherited(), **user.variables, **more}, stdin=b"", timeout=110
    )
    assert b"Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


def wait_for_exit(process: "subprocess.Popen[str]", seconds: float = SECONDS) -> tuple[int, str, str]:
    """Wait for the end of a program, and return its exit code and the rest of its output."""
    said: dict[int, str] = {}

    def read(number: int, stream: IO[str] | None) -> None:
        said[number] = stream.read() if stream else ""

    # Not `communicate`: it loses what an earlier reader of lines has buffered.
    streams = (process.stdout, process.stderr)
    readers = [threading.Thread(target=read, args=each, daemon=True) for each in enumerate(streams, 1)]
    for reader in readers:
        reader.start()
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGUSR1)  # then a forked program prints the stacks of its threads
        time.sleep(1)
        process.kill()
    for reader in readers:
        reader.join(SECONDS)
    out, errors = said.get(1, ""), said.get(2, "")
    assert process.wait(timeout=SECONDS) != -signal.SIGKILL, f"it did not end: {out[-1000:]} {errors[-30000:]}"
    assert "Traceback" not in errors, errors
    return process.returncode, out, errors


@contextlib.contextmanager
def start_program(user: LabUser, *words: str, **more: str) -> "Iterator[subprocess.Popen[str]]":
    """Start the program, and end it at the latest after the block."""
    process = user.start(*words, **more)
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=SECONDS)
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()


def kill_program(process: "subprocess.Popen[str]") -> None:
    """Kill the program with SIGKILL."""
    process.kill()
    process.wait(timeout=SECONDS)


def expect_line(process: "subprocess.Popen[str]", line: str) -> None:
    """Check that the program prints this text next."""
    assert process.stdout is not None
    found = process.stdout.readline()
    assert found == line, (found, wait_for_exit(process))


def wait_for(holds: Callable[[], bool], what: str = "", seconds: float = SECONDS) -> None:
    """Wait until a condition holds."""
    assert eventually(holds, seconds), f"it never came to be: {what}"


def last_run(user: LabUser) -> dict[str, Any]:
    """Return the newest recorded run, or an empty object."""
    runs = user.does("runs")["runs"]
    return dict(runs[0]) if runs else {}


def show_run(user: LabUser, run: str = "last") -> dict[str, Any]:
    """Return the full record of a run."""
    return dict(user.does("runs", "show", run)["run"])


def submit_job(user: LabUser, *words: str, exit_code: int = 0, **more: str) -> dict[str, Any]:
    """Return the run that `submit --json` prints. Options come before the script and its arguments."""
    done = user("submit", "--json", *words, **more)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return run_in_output(done.stdout)


def submit_refused(user: LabUser, *words: str, code: str, exit_code: int = 1, **more: str) -> dict[str, Any]:
    """Return the one problem that `submit` reports, which has a help text."""
    done = user("submit", "--json", *words, **more)
    assert done.returncode == exit_code, done.stdout + done.stderr
    (diagnostic,) = json.loads(done.stdout)["diagnostics"]
    assert diagnostic["code"] == code, diagnostic
    assert diagnostic.get("help"), f"no next step: {diagnostic}"
    return dict(diagnostic)


def shared_folder(user: LabUser, name: str) -> Path:
    """Return the shared folder of all jobs of a target."""
    home = user.home if name in {LOCAL, LOCALDOCKER} else user.lab.home
    folder = home / ".azureml/share"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_in_output(printed: str) -> dict[str, Any]:
    """Return the run in the one printed object."""
    document = json.loads(printed)
    assert document["schemaVersion"] == 1
    return dict(document["run"])


def outputs_of(user: LabUser, run: str) -> Path:
    """Return the outputs folder of a run."""
    return user.workspace / ".gpuinfra" / "runs" / run / "outputs"


def outputs_there(run: Path) -> Path:
    """Return the folder in which a running job writes its outputs, for its run's folder on the machine."""
    return run.parents[1] / "projects" / (run / "slot").read_text() / "tree" / "outputs"


def read_tree(folder: Path) -> dict[str, bytes | str]:
    """Return files with their content and links with their targets, by path."""
    return {
        path.relative_to(folder).as_posix(): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


class Terminal:
    """The program on a terminal, with simulated key presses."""

    def __init__(
        self, user: LabUser | User, *words: str, patch: Mapping[str, float] | None = None, **variables: str
    ) -> None:
        self.seen = b""
        # With its own settings, the test decides which Azure is used.
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

    def wait_for_text(self, text: bytes, seconds: float = SECONDS) -> None:
        """Wait until this text is on the screen."""
        self.wait_until(lambda seen: text in seen, seconds)

    def wait_until(self, holds: Callable[[bytes], bool], seconds: float = SECONDS) -> None:
        """Wait until a condition holds for everything that was written to the screen."""
        deadline = time.monotonic() + seconds
        while not holds(self.seen):
            assert time.monotonic() < deadline, self.seen[-3000:]
            assert self._read(1.0), self.seen[-3000:]

    def type_keys(self, keys: bytes) -> None:
        """Type keys."""
        os.write(self._terminal, keys)

    def type_until(self, keys: bytes, text: bytes) -> None:
        """Type until this text is on the screen: Python ignores a Ctrl-C that arrives just before it reads."""
        deadline = time.monotonic() + SECONDS
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen[-3000:]
            self.type_keys(keys)
            again = time.monotonic() + 2
            while text not in self.seen and time.monotonic() < again and self._read(0.5):
                pass

    def type_until_exit(self, keys: bytes) -> int:
        """Type until the program ends, and return its exit code."""
        deadline, is_open = time.monotonic() + SECONDS, True
        while is_open:
            assert time.monotonic() < deadline, self.seen[-3000:]
            self.type_keys(keys)
            again = time.monotonic() + 2
            while is_open and time.monotonic() < again:
                is_open = self._read(0.5)
        return int(self._program.wait(timeout=SECONDS))

    def wait_for_exit(self, seconds: float = SECONDS) -> int:
        """Return the exit code."""
        deadline = time.monotonic() + seconds
        while self._read(1.0):
            assert time.monotonic() < deadline, self.seen[-3000:]
        return int(self._program.wait(timeout=seconds))

    def close(self) -> None:
        """End the program and close the terminal."""
        self._program.kill()
        self._program.wait(timeout=SECONDS)
        os.close(self._terminal)

    def _read(self, seconds: float) -> bool:
        """Read what is available, and return whether more can come."""
        ready, _, _ = select.select([self._terminal], [], [], seconds)
        if not ready:
            return True
        try:
            data = os.read(self._terminal, 1 << 16)
        except OSError:  # the program has closed its end
            return False
        self.seen += data
        return bool(data)


@contextlib.contextmanager
def open_terminal(user: LabUser | User, *words: str, patch: Mapping[str, float] | None = None) -> Iterator[Terminal]:
    """Run the program on a terminal; `patch` sets constants in it."""
    made = Terminal(user, *words, patch=patch)
    try:
        yield made
    finally:
        made.close()
