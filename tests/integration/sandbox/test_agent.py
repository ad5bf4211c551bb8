"""The guest agent in real guests, with Azure's clock running fast: what it ends, and what the meter says of it."""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.models.agent import AgentState, parse_agent_state
from provision.lifecycle.terms import Terms, to_tag
from provision.login.cloud_init import LARGEST, agent_unit, custom_data
from provision.login.host_key import new_host_key
from templates import agent
from templates.agent import Program
from tests.integration.sandbox.conftest import Sandbox
from tests.integration.sandbox.machine_help import Place, profile, serving
from tests.integration.sandbox.test_identity import Roles
from tests.real import program

SPEED = 60.0
MINUTE = timedelta(minutes=1)
# A tick, a token, an order, on a computer with more to do: two seconds of the wall's.
SLACK = 2 * SPEED

# What is said of a job, and what is asked of it: as `far` keeps it. It ends when it is asked to.
JOB = """
import fcntl, json, os, sys, time
folder = sys.argv[1]
os.makedirs(folder)
lock = open(f"{folder}/alive", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
os.mkfifo(f"{folder}/control")
control = os.open(f"{folder}/control", os.O_RDWR)
state = {"kind": "process", "started": time.time()}
open(f"{folder}/state.new", "w").write(json.dumps(state))
os.rename(f"{folder}/state.new", f"{folder}/state.json")
print("ready", flush=True)
grace = os.read(control, 100).decode()
ending = json.load(open(f"{folder}/ending.json"))
open(f"{folder}/state.json", "w").write(json.dumps({**state, "ended": time.time(), "asked": grace, **ending}))
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with serving(tmp_path_factory.mktemp("azure")) as sandbox:
        yield sandbox


class Machine:
    """One with an agent, and the right to switch itself off."""

    def __init__(self, sandbox: Sandbox, name: str, terms: Terms, *, spot: bool = False) -> None:
        sandbox.control("POST", "clock", {"speed": 1})
        self.sandbox, self.name = sandbox, name
        for cached in ("_compute", "_network", "_resource"):
            sandbox.__dict__.pop(cached, None)  # their tokens may be of long ago
        self.place = Place(sandbox, group=name)
        sandbox.control("DELETE", "faults")
        data = custom_data(new_host_key(), terms, "ada")
        assert len(base64.b64decode(data)) < LARGEST / 2
        priority: dict[str, Any] = {
            "priority": "Spot",
            "evictionPolicy": "Deallocate",
            "billingProfile": {"maxPrice": -1},
        }
        body = self.place.body(name, osProfile=profile(customData=data), **(priority if spot else {}))
        body["identity"] = {"type": "SystemAssigned"}
        now = datetime.fromtimestamp(sandbox.server.cloud.clock.now(), UTC)
        self.tags = {
            "gpuinfra:name": name,
            "gpuinfra:terms": to_tag(terms),
            "gpuinfra:on-since": moment(now),
            "gpuinfra:lease-until": moment(now + terms.lease),
        }
        body["tags"] = self.tags
        made = self.place.put(name, body)
        self.root: Path = sandbox.folder / "guests" / made.vm_id
        roles = Roles(sandbox)
        role = roles.own_role("Microsoft.Compute/virtualMachines/deallocate/action")
        status, answer = roles.assign(made.identity.principal_id, role, self.place.id(name))
        assert status == 201, answer
        assert eventually(lambda: self.state() is not None), self.journal()

    def state(self) -> AgentState | None:
        try:
            return parse_agent_state((self.root / "run" / "gpuinfra" / "agent.json").read_text())
        except FileNotFoundError:
            return None

    def journal(self) -> str:
        log = self.root / "var" / "log" / "journal" / "gpuinfra-agent.service.log"
        return log.read_text() if log.exists() else "no journal"

    def speed(self, speed: float = SPEED) -> None:
        self.sandbox.control("POST", "clock", {"speed": speed})

    def fault(self, name: str, **fields: Any) -> None:
        self.sandbox.control("POST", "faults", {"name": name, "resource": self.name, **fields})

    def lease_until(self, until: datetime) -> None:
        body = {"tags": {**self.tags, "gpuinfra:lease-until": moment(until)}}
        status, _, answer = self.sandbox.http("PATCH", self.place.path(self.name), body)
        assert status in {200, 202}, answer

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.sandbox.server.cloud.clock.now(), UTC)

    def is_off(self) -> bool:
        return bool(self.place.bill(self.name)["powerState"] == "deallocated")

    def billed(self) -> float:
        """How long it was billed, by the meter, once it is off."""
        assert eventually(self.is_off, 30), f"{self.state()}\n{self.journal()}"
        return float(self.place.bill(self.name)["billedSeconds"])

    def asks(self) -> list[int]:
        """How Azure answered what the agent asked of it."""
        log = self.sandbox.control("GET", "log")["requests"]
        path = f"/virtualmachines/{self.name}/deallocate"
        return [entry["status"] for entry in log if entry["path"].lower().endswith(path)]

    def run_folder(self, run: str) -> Path:
        return self.root / "home" / "ada" / ".gpuinfra" / "runs" / run


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether it becomes true in time."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def moment(of: datetime) -> str:
    return of.strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def job(machine: Machine, run: str) -> "Iterator[subprocess.Popen[str]]":
    """A job in the guest that waits to be asked to end."""
    words = [sys.executable, "-c", JOB, str(machine.run_folder(run))]
    machine.run_folder(run).parent.mkdir(parents=True, exist_ok=True)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
            yield child
        finally:
            child.kill()


def test_a_lease_ends_the_machine_and_its_job_is_told(running: Sandbox) -> None:
    machine = Machine(running, "lease", Terms(3 * MINUTE, 60 * MINUTE))
    with job(machine, "r1") as child:
        assert eventually(lambda: (state := machine.state()) is not None and state.jobs == ("r1",))
        machine.speed()
        billed = machine.billed()
        assert child.wait(5) == 0
    assert 180 - 40 <= billed <= 180 + SLACK, machine.journal()
    state = json.loads((machine.run_folder("r1") / "state.json").read_text())
    assert (state["how"], state["detail"][:14]) == ("lease over", "the lease ends")
    assert float(state["asked"]) >= 1
    assert machine.asks() == [202]
    assert "lease over" in (machine.root / "var" / "log" / "wall").read_text()


def test_an_idle_machine_goes_off(running: Sandbox) -> None:
    machine = Machine(running, "idle", Terms(240 * MINUTE, 3 * MINUTE))
    machine.speed()
    load = machine.root / "run" / "gpu-load.json"
    load.write_text('{"utilization": 90}')
    assert eventually(lambda: (state := machine.state()) is not None and state.gpu_utilization == 90)
    busy_until = machine.now() + 4 * MINUTE
    assert eventually(lambda: machine.now() > busy_until)
    assert not machine.is_off()
    load.unlink()
    freed = machine.now()
    machine.billed()
    off = datetime.fromisoformat(machine.place.bill(machine.name)["timeline"][-1]["from"])
    assert 3 * MINUTE - timedelta(seconds=5) <= off - freed <= 3 * MINUTE + timedelta(seconds=SLACK), machine.journal()


def test_a_run_whose_client_is_gone_takes_the_machine_along(running: Sandbox) -> None:
    machine = Machine(running, "finished", Terms(240 * MINUTE, 60 * MINUTE))
    folder = machine.run_folder("r1")
    folder.mkdir(parents=True)
    (folder / "attended.json").write_text('{"afterRun": "delete"}')
    (folder / "state.json").write_text(json.dumps({"kind": "process", "started": time.time(), "ended": time.time()}))
    time.sleep(1.5)
    assert not machine.is_off()
    # The client's last word was long ago.
    os.utime(folder / "attended.json", (time.time() - 46, time.time() - 46))
    started = time.monotonic()
    machine.billed()
    assert time.monotonic() - started < 10, machine.journal()
    assert machine.asks() == [202]


def test_a_machine_without_a_token_asks_until_it_has_one(running: Sandbox) -> None:
    machine = Machine(running, "token", Terms(2 * MINUTE, 60 * MINUTE))
    machine.fault("identity-refused")
    machine.speed()
    assert eventually(lambda: (state := machine.state()) is not None and "403" in (state.last_error or ""), 20)
    state = machine.state()
    assert state is not None
    assert (state.action, state.cause) == ("deallocating", "lease over")
    assert machine.asks() == []
    # A lease that is extended now calls it off, and nobody asks any more.
    machine.lease_until(machine.now() + 4 * MINUTE)
    assert eventually(lambda: (state := machine.state()) is not None and state.action in {"watching", "warning"})
    running.control("DELETE", "faults")
    allowed = machine.now()
    machine.billed()
    assert machine.now() - allowed > 2 * MINUTE, machine.journal()
    assert machine.asks() == [202]


def test_an_azure_that_fails_is_asked_again(running: Sandbox) -> None:
    machine = Machine(running, "failing", Terms(2 * MINUTE, 60 * MINUTE))
    machine.fault("InternalServerError", method="POST", type="virtualMachines", count=3)
    machine.speed()
    assert machine.billed() <= 120 + 7 + 2 * SLACK, machine.journal()
    assert machine.asks() == [500, 500, 500, 202]


def test_an_agent_that_is_killed_is_there_again(running: Sandbox) -> None:
    machine = Machine(running, "killed", Terms(5 * MINUTE, 60 * MINUTE))
    status = subprocess.run(
        [machine.root / "bin" / "systemctl", "show", "-p", "MainPID", "--value", "gpuinfra-agent"],
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    )
    before = machine.state()
    assert before is not None
    subprocess.run(["kill", "-KILL", status.stdout.strip()], check=True, timeout=20)
    machine.speed()
    assert 300 - 2 <= machine.billed() <= 300 + SLACK, machine.journal()
    after = machine.state()
    assert after is not None
    assert after.power_on == before.power_on


def test_an_eviction_lets_the_job_end_first(running: Sandbox) -> None:
    machine = Machine(running, "spot", Terms(60 * MINUTE, 60 * MINUTE), spot=True)
    with job(machine, "r1") as child:
        assert eventually(lambda: (state := machine.state()) is not None and state.jobs == ("r1",))
        machine.fault("evict")
        given = machine.now()
        assert child.wait(20) == 0
        machine.billed()
    # By its word Azure need not wait for the end of the notice.
    assert machine.now() - given < timedelta(seconds=20)
    assert json.loads((machine.run_folder("r1") / "state.json").read_text())["how"] == "evicted"
    assert machine.asks() == []


def test_a_program_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "PROGRAM_SECONDS", 0.1)
    began = time.monotonic()
    assert Program(["sleep", "20"]).ask() is None
    assert Program(["no-such-program"]).ask() is None
    assert Program(["false"]).ask() is None
    assert time.monotonic() - began < 10
    monkeypatch.setattr(agent, "PROGRAM_SECONDS", 20.0)
    assert Program(["echo", "7"]).ask() == "7\n"


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    analyze = program("systemd-analyze", "systemd")
    unit = tmp_path / "gpuinfra-agent.service"
    unit.write_text(agent_unit("/home/ada"))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "gpuinfra-agent" in line]) == (0, [])
