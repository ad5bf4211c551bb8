"""`gpuinfra run` on its way, as the tests see it: by what it prints, by files on the guest's disk, by Azure itself."""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from gpuinfra.runner.results.history import History
from tests.e2e.azure import Azure
from tests.e2e.user import User, inherited
from tests.program import PROGRAM, Program

SECONDS = 120.0
PAUSE = 0.01
LEASE = 2 * 3600
SPEC: dict[str, Any] = {"target": {"type": "remote"}, "lifecycle": {"lease": "2h"}}
MODEL = 16 << 20
# An address at which nothing answers.
NOWHERE = "127.77.0.250"

# Writes, says so, and waits for a file in its home. Then it writes more, and ends.
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
# Writes a file that takes a while to be brought: of bytes that nobody can compress.
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
    ends = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < ends, f"not within {seconds:.0f} s: {what}"
        time.sleep(PAUSE)


def project(user: User, **lifecycle: Any) -> None:
    """Somebody with a spec for jobs without a container, and scripts."""
    user.spec(target=SPEC["target"], lifecycle={**SPEC["lifecycle"], **lifecycle})
    for name, text in (("waits.py", WAITS), ("writes.py", WRITES), ("quick.py", QUICK)):
        (user.workspace / name).write_text(text)


class Client:
    """The program, as a process that can be killed. Whoever leaves the `with` leaves it not running."""

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
        """Wait for something, while the program goes on."""
        ends = time.monotonic() + SECONDS
        while not reached():
            assert self.process.poll() is None, f"it ended first: {self.said}"
            assert time.monotonic() < ends, f"it does not come to that: {self.said}"
            time.sleep(PAUSE)

    def until_says(self, words: str) -> None:
        self.until(lambda: words in self.out + self.err)

    def until_held(self) -> None:
        """Wait until a fault of the sandbox's holds a request."""
        faults = self.user.azure.control
        self.until(lambda: any(fault.get("held") for fault in faults("GET", "faults")["faults"]))

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """As a power cut would."""
        assert self.process.poll() is None, f"it ended first: {self.said}"
        self.process.kill()
        self.process.wait(SECONDS)

    def end(self, seconds: float = SECONDS) -> int:
        """Its exit code."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGUSR1)  # a forked program then prints what its threads do
            time.sleep(1)
            raise AssertionError(f"it does not end: {self.said}") from None
        assert "Traceback" not in self.err, self.err
        assert "internal error" not in self.out + self.err, self.said
        return self.process.returncode


Start = Callable[..., Client]


@contextmanager
def clients(user: User) -> Iterator[Start]:
    """Starts programs, none of which goes on afterwards."""
    with ExitStack() as stack:
        yield lambda *words, **more: stack.enter_context(Client(user, *words, **more))


def guest_root(azure: Azure) -> Path:
    """The guest's disk."""
    return azure.folder / "guests" / str(azure.machine()["properties"]["vmId"])


def guest_home(azure: Azure) -> Path:
    return guest_root(azure) / "home" / "azureuser"


def state_of_job(azure: Azure, run: str) -> dict[str, Any] | None:
    """What the machine itself knows of a job."""
    try:
        found: dict[str, Any] = json.loads((guest_home(azure) / ".gpuinfra" / "runs" / run / "state.json").read_text())
    except FileNotFoundError:
        return None
    return found


def guest_processes(azure: Azure) -> list[int]:
    """Whatever runs in any guest of this sandbox."""
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


def ran(user: User, *words: str, exit_code: int = 0) -> dict[str, Any]:
    """A whole `gpuinfra run`, and the object that it prints. Options stand before the spec."""
    done = user("run", "--json", *words)
    assert done.returncode == exit_code, done.stdout + done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["schemaVersion"] == 1
    return document


def runs_of(user: User) -> list[dict[str, Any]]:
    """What is remembered, the newest first."""
    return [run.as_json() for run in History(user.workspace / ".gpuinfra").list()]


def is_off(azure: Azure) -> bool:
    """By Azure's own word, and by its meter."""
    return azure.machine()["powerState"] == "PowerState/deallocated" and not azure.is_billed()


def hide_machine(user: User, azure: Azure) -> None:
    """The target's file leads to an address where nothing answers, as if the network were down."""
    file = user.workspace / "aml_config" / "my_dsvm.compute"
    assert azure.address() in file.read_text()
    file.write_text(file.read_text().replace(azure.address(), NOWHERE))


def show_machine(user: User, azure: Azure) -> None:
    """The target's file leads to the machine again."""
    file = user.workspace / "aml_config" / "my_dsvm.compute"
    file.write_text(file.read_text().replace(NOWHERE, azure.address()))
