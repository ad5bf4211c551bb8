"""Helpers for `gpuinfra run`: its output, the guest's disk, and Azure's view of the machine."""

import contextlib
import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gpuinfra.store import FILE, History
from tests.e2e.azure import Azure
from tests.e2e.user import User, inherited
from tests.program import PROGRAM, Program

SECONDS = 120.0
SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.25
LEASE = 2 * 3600
SPEC: dict[str, Any] = {"target": {"type": "remote"}, "lifecycle": {"lease": "2h"}}
MODEL = 16 << 20
# An address at which nothing answers.
NOWHERE = "127.77.0.250"

# Writes a file, prints `begun`, waits for the file `go` in its home, writes another file, and ends.
WAITS = """
import os, pathlib, sys, time
pathlib.Path("outputs/early.txt").write_text("early")
print("begun", flush=True)
go, ends = pathlib.Path.home() / "go", time.monotonic() + 100
while not go.exists():
    if time.monotonic() > ends:
        sys.exit(99)
    time.sleep(0.02)
pathlib.Path("outputs/late.txt").write_text("late")
print("ended", flush=True)
sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""
# Writes a file of random bytes, so that the download takes a while.
WRITES = f"""
import pathlib, random
pathlib.Path("outputs/model.bin").write_bytes(random.Random(1).randbytes({MODEL}))
print("ended", flush=True)
"""
QUICK = """
import pathlib, sys
pathlib.Path("outputs/result.txt").write_text("result")
print("done", flush=True)
sys.exit(int(sys.argv[1]) if sys.argv[1:] else 0)
"""


def wait_until(holds: Callable[[], bool], what: str, seconds: float = SECONDS) -> None:
    """Wait for something to become true."""
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() < begun + seconds, f"not within {seconds:.0f} s: {what}"
        pause_since(begun)


def pause_since(begun: float) -> None:
    """Pause between two looks, longer after a while: a look costs processor time that others need."""
    time.sleep(min(max(SHORTEST_PAUSE, (time.monotonic() - begun) / 20), LONGEST_PAUSE))


def project(user: User, **lifecycle: Any) -> None:
    """Give the user a spec for jobs without a container, and scripts."""
    user.spec(target=SPEC["target"], lifecycle={**SPEC["lifecycle"], **lifecycle})
    for name, text in (("waits.py", WAITS), ("writes.py", WRITES), ("quick.py", QUICK)):
        (user.workspace / name).write_text(text)


def make_other_user(user: User, tmp_path: Path) -> User:
    """Return a user with the same key and spec, in a workspace without runs."""
    other = User.__new__(User)
    other.azure, other.home, other.workspace = user.azure, user.home, tmp_path / "elsewhere"
    other.workspace.mkdir()
    project(other)
    return other


class Client:
    """The program as a process that can be killed. It is ended at the latest after the block."""

    def __init__(self, user: User, *words: str, signals: str | None = None) -> None:
        """With `signals`, an option of `env`, the program is executed and begins with these; otherwise it is forked."""
        self.user = user
        number = len(list(user.home.glob("*.out")))
        self._out, self._err = (user.home / f"{number}.{kind}" for kind in ("out", "err"))
        environment = {**inherited(), **user.variables, "GPUINFRA_CLOUD": "sandbox"}
        with self._out.open("wb") as out, self._err.open("wb") as err:
            options: Any = {"cwd": user.workspace, "env": environment, "stdin": subprocess.DEVNULL}
            options |= {"stdout": out, "stderr": err}
            self.process: subprocess.Popen[Any] = (
                subprocess.Popen(["env", signals, PROGRAM, *words], **options)
                if signals
                else Program(*words, **options)
            )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(SECONDS)

    @property
    def out(self) -> str:
        return self._out.read_text("utf-8", "replace")

    @property
    def err(self) -> str:
        return self._err.read_text("utf-8", "replace")

    @property
    def said(self) -> str:
        return f"exit {self.process.returncode}\n{self.out}\n{self.err}"

    def until(self, reached: Callable[[], Any]) -> None:
        """Wait for a condition while the program runs."""
        begun = time.monotonic()
        while not reached():
            assert self.process.poll() is None, f"it ended first: {self.said}"
            assert time.monotonic() < begun + SECONDS, f"it does not come to that: {self.said}"
            pause_since(begun)

    def until_says(self, words: str) -> None:
        self.until(lambda: words in self.out + self.err)

    def until_held(self) -> None:
        """Wait until a fault of the sandbox holds a request."""
        faults = self.user.azure.control
        self.until(lambda: any(fault.get("held") for fault in faults("GET", "faults")["faults"]))

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL, as a power cut would end it."""
        assert self.process.poll() is None, f"it ended first: {self.said}"
        self.process.kill()
        self.process.wait(SECONDS)

    def end(self, seconds: float = SECONDS) -> int:
        """Return the exit code."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGUSR1)  # then a forked program prints the stacks of its threads
            time.sleep(1)
            raise AssertionError(f"it does not end: {self.said}") from None
        assert "Traceback" not in self.err, self.err
        assert "internal error" not in self.out + self.err, self.said
        return self.process.returncode


Start = Callable[..., Client]


@contextmanager
def clients(user: User) -> Iterator[Start]:
    """Start programs, and end all of them after the test."""
    with ExitStack() as stack:
        yield lambda *words, **more: stack.enter_context(Client(user, *words, **more))


def guest_root(azure: Azure) -> Path:
    """Return the root folder of the guest."""
    return azure.folder / "guests" / str(azure.machine()["properties"]["vmId"])


def guest_home(azure: Azure) -> Path:
    return guest_root(azure) / "home" / "azureuser"


def agent_state(azure: Azure) -> dict[str, Any]:
    """Return the state file of the guest agent, or an empty object before its first look."""
    file = guest_root(azure) / "run" / "gpuinfra" / "agent.json"
    return dict(json.loads(file.read_text())) if file.exists() else {}


def wait_for_agent(azure: Azure) -> None:
    """Wait until the guest agent watches the machine: `up` does not.

    One that starts after the clock was advanced takes the lease for that of an earlier power-on, and begins another.
    """
    wait_until(lambda: agent_state(azure) != {}, "an agent that watches the machine")


def state_of_job(azure: Azure, run: str) -> dict[str, Any] | None:
    """Return the state of a job as recorded on the machine."""
    try:
        found: dict[str, Any] = json.loads((guest_home(azure) / ".gpuinfra" / "runs" / run / "state.json").read_text())
    except FileNotFoundError:
        return None
    return found


def wait_for_job_end(azure: Azure, run: str) -> None:
    """Wait until the machine has recorded the end of the job."""
    wait_until(lambda: "ended" in (state_of_job(azure, run) or {}), "the end of the job")


def guest_processes(azure: Azure) -> list[int]:
    """Return the processes of all guests of this sandbox."""
    mark, found = f":{azure.folder.resolve()}/".encode(), []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                environment = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has just ended
            if any(each.startswith(b"GPUINFRA_GUEST_MARKER=") and mark in each for each in environment):
                found.append(int(folder.name))
    return found


def run_job(user: User, *words: str, exit_code: int = 0) -> dict[str, Any]:
    """Run a complete `gpuinfra run`, and return the object that it prints. Options come before the spec."""
    done = user("run", "--json", *words)
    assert done.returncode == exit_code, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schemaVersion"] == 1
    return document


def forget_runs(user: User) -> None:
    """Empty the history, as in another workspace: the machine still has its records."""
    with contextlib.closing(sqlite3.connect(user.workspace / ".gpuinfra" / FILE)) as database, database:
        assert database.execute("DELETE FROM runs").rowcount


def runs_of(user: User) -> list[dict[str, Any]]:
    """Return the recorded runs, newest first."""
    return [run.as_json() for run in History(user.workspace / ".gpuinfra").list()]


def is_off(azure: Azure) -> bool:
    """Return whether Azure reports the machine as deallocated and bills nothing."""
    return azure.machine()["powerState"] == "PowerState/deallocated" and not azure.is_billed()


def hide_machine(user: User, azure: Azure) -> None:
    """Make the target's file point to an address where nothing answers, as if the network were down."""
    file = user.workspace / "aml_config" / "my_dsvm.compute"
    assert azure.address() in file.read_text()
    file.write_text(file.read_text().replace(azure.address(), NOWHERE))


def show_machine(user: User, azure: Azure) -> None:
    """Make the target's file point to the machine again."""
    file = user.workspace / "aml_config" / "my_dsvm.compute"
    file.write_text(file.read_text().replace(NOWHERE, azure.address()))
