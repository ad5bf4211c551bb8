"""The guest agent in real guests, with the sandbox's clock advanced by the test, checked against the meter."""

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.models.machine import AgentState, parse_agent_state
from gpuinfra.provision.lease import Terms, terms_to_tag
from gpuinfra.provision.login import new_host_key
from gpuinfra.provision.resources.cloud_init import LARGEST, agent_unit, custom_data
from tests.integration.sandbox.machine_help import Place, profile
from tests.integration.sandbox.servers import WAIT_SECONDS, Sandbox, wait_until
from tests.integration.sandbox.services.test_identity import Roles
from tests.real import program
from tests.variants import variant

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
LOOK = 6 * SECOND
"""After this long the agent looks for jobs, logins and GPU load again."""

# What is said of a job, and what is asked of it: as `remote` keeps it. It ends when it is asked to.
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


class Machine:
    """One with an agent, and the right to switch itself off."""

    def __init__(self, sandbox: Sandbox, name: str, terms: Terms, *, spot: bool = False) -> None:
        sandbox.freeze()
        self.sandbox, self.name = sandbox, name
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
        now = self.created = self.now()
        self.tags = {
            "gpuinfra:name": name,
            "gpuinfra:terms": terms_to_tag(terms),
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
        wait_until(lambda: self.state() is not None, "the agent did not start")

    def state(self) -> AgentState | None:
        try:
            return parse_agent_state((self.root / "run" / "gpuinfra" / "agent.json").read_text())
        except FileNotFoundError:
            return None

    def seen(self) -> AgentState:
        """What the agent wrote down last."""
        state = self.state()
        assert state is not None, self.journal()
        return state

    def agent_pid(self) -> int:
        """The process of the agent, 0 while there is none."""
        asked = [str(self.root / "bin" / "systemctl"), "show", "-p", "MainPID", "--value", "gpuinfra-agent"]
        return int(subprocess.run(asked, capture_output=True, text=True, timeout=WAIT_SECONDS, check=True).stdout)

    def journal(self) -> str:
        log = self.root / "var" / "log" / "journal" / "gpuinfra-agent.service.log"
        return log.read_text() if log.exists() else "no journal"

    def step(self, to: timedelta) -> None:
        """Set Azure's clock to so long after the machine was made, and wait until the agent has decided then."""
        by = (self.created + to - self.now()).total_seconds()
        self.sandbox.control("POST", "clock", {"advance": by})
        now = self.now().replace(microsecond=0)
        wait_until(
            lambda: self.is_off() or ((state := self.state()) is not None and state.at >= now),
            self.journal,
        )

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
        wait_until(self.is_off, lambda: f"{self.state()}\n{self.journal()}")
        return float(self.place.bill(self.name)["billedSeconds"])

    def asks(self) -> list[int]:
        """How Azure answered what the agent asked of it."""
        log = self.sandbox.control("GET", "log")["requests"]
        path = f"/virtualmachines/{self.name}/deallocate"
        return [entry["status"] for entry in log if entry["path"].lower().endswith(path)]

    def run_folder(self, run: str) -> Path:
        return self.root / "home" / "ada" / ".gpuinfra" / "runs" / run


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


@variant
def test_expired_lease_deallocates_the_machine_and_notifies_its_job(server: Sandbox) -> None:
    machine = Machine(server, "lease", Terms(3 * MINUTE, 60 * MINUTE))
    with job(machine, "r1") as child:
        machine.step(LOOK)
        wait_until(lambda: machine.seen().jobs == ("r1",), machine.journal)
        machine.step(2 * MINUTE)
        assert machine.seen().action == "warning"
        assert child.poll() is None
        # A job is asked to end half a minute ahead.
        machine.step(2 * MINUTE + 40 * SECOND)
        billed = machine.billed()
        assert child.wait(WAIT_SECONDS) == 0
    assert billed == pytest.approx(160, abs=1), machine.journal()
    state = json.loads((machine.run_folder("r1") / "state.json").read_text())
    assert (state["how"], state["detail"][:14]) == ("lease over", "the lease ends")
    assert float(state["asked"]) >= 1
    assert machine.asks() == [202]
    assert "lease over" in (machine.root / "var" / "log" / "wall").read_text()


@variant
def test_idle_machine_is_deallocated(server: Sandbox) -> None:
    machine = Machine(server, "idle", Terms(240 * MINUTE, 3 * MINUTE))
    load = machine.root / "run" / "gpu-load.json"
    load.write_text('{"utilization": 90}')
    machine.step(LOOK)
    wait_until(lambda: machine.seen().gpu_utilization == 90, machine.journal)
    machine.step(4 * MINUTE)
    assert (machine.is_off(), machine.seen().idle_since) == (False, None)
    load.unlink()
    machine.step(4 * MINUTE + LOOK)
    wait_until(lambda: machine.seen().idle_since is not None, machine.journal)
    idle_since = machine.seen().idle_since
    assert idle_since is not None
    machine.step(6 * MINUTE + 50 * SECOND)
    assert not machine.is_off()
    machine.step(7 * MINUTE + 10 * SECOND)
    machine.billed()
    off = datetime.fromisoformat(machine.place.bill(machine.name)["timeline"][-1]["from"])
    assert 3 * MINUTE <= off - idle_since <= 3 * MINUTE + 10 * SECOND, machine.journal()


@variant
def test_machine_is_deallocated_when_the_client_of_its_run_is_gone(server: Sandbox) -> None:
    machine = Machine(server, "finished", Terms(240 * MINUTE, 60 * MINUTE))
    folder = machine.run_folder("r1")
    folder.mkdir(parents=True)
    (folder / "state.json").write_text(json.dumps({"kind": "process", "started": time.time(), "ended": time.time()}))
    (folder / "attended.json").write_text('{"afterRun": "delete"}')
    machine.step(LOOK)
    assert not machine.is_off()
    # The client's last word was long ago, and so was the end of the job.
    past = time.time() - 46
    os.utime(folder / "attended.json", (past, past))
    machine.step(2 * LOOK)
    assert not machine.is_off(), "its job has just ended"
    (folder / "state.json").write_text(json.dumps({"kind": "process", "started": time.time(), "ended": past}))
    machine.step(3 * LOOK)
    machine.billed()
    assert machine.asks() == [202]


def test_agent_retries_until_it_gets_a_token(server: Sandbox) -> None:
    machine = Machine(server, "token", Terms(2 * MINUTE, 60 * MINUTE))
    machine.fault("identity-refused")
    machine.step(2 * MINUTE + SECOND)
    wait_until(lambda: "403" in (machine.seen().last_error or ""), machine.journal)
    assert (machine.seen().action, machine.seen().cause) == ("deallocating", "lease over")
    assert machine.asks() == []
    # Extending the lease now cancels the shutdown, and the agent stops asking.
    machine.lease_until(machine.created + 6 * MINUTE)
    wait_until(lambda: machine.seen().action in {"watching", "warning"}, machine.journal)
    server.control("DELETE", "faults")
    machine.step(5 * MINUTE + 50 * SECOND)
    assert (machine.is_off(), machine.asks()) == (False, [])
    machine.step(6 * MINUTE + SECOND)
    assert machine.billed() == pytest.approx(361, abs=1), machine.journal()
    assert machine.asks() == [202]


def test_agent_retries_when_azure_fails(server: Sandbox) -> None:
    machine = Machine(server, "failing", Terms(2 * MINUTE, 60 * MINUTE))
    machine.fault("InternalServerError", method="POST", type="virtualMachines", count=3)
    after, ends = 121, time.monotonic() + WAIT_SECONDS
    # The frozen clock moves on until the agent asks again: when it noted the last answer, by that clock, is not known.
    while machine.asks() != [500, 500, 500, 202]:
        assert time.monotonic() < ends, machine.journal()
        machine.step(after * SECOND)
        time.sleep(0.1)
        after += 1
    # Between one try and the next it waits 1, 2 and 4 seconds.
    assert 120 + 1 + 2 + 4 <= machine.billed() <= after, machine.journal()


def test_killed_agent_is_restarted(server: Sandbox) -> None:
    machine = Machine(server, "killed", Terms(5 * MINUTE, 60 * MINUTE))
    before, first = machine.seen(), machine.agent_pid()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: machine.agent_pid() not in {0, first}, machine.journal)
    machine.step(4 * MINUTE)
    assert machine.seen().power_on == before.power_on
    assert not machine.is_off()
    machine.step(5 * MINUTE + SECOND)
    assert machine.billed() == pytest.approx(301, abs=1), machine.journal()


def test_eviction_waits_for_the_job_to_stop(server: Sandbox) -> None:
    machine = Machine(server, "spot", Terms(60 * MINUTE, 60 * MINUTE), spot=True)
    with job(machine, "r1") as child:
        machine.step(LOOK)
        wait_until(lambda: machine.seen().jobs == ("r1",), machine.journal)
        machine.fault("evict")
        assert child.wait(WAIT_SECONDS) == 0
        # The clock stands still: Azure does not wait for the end of its notice once the machine has agreed.
        machine.billed()
    assert json.loads((machine.run_folder("r1") / "state.json").read_text())["how"] == "evicted"
    assert machine.asks() == []


def test_systemd_accepts_the_unit_file(tmp_path: Path) -> None:
    analyze = program("systemd-analyze", "systemd")
    unit = tmp_path / "gpuinfra-agent.service"
    unit.write_text(agent_unit("/home/ada"))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "gpuinfra-agent" in line]) == (0, [])
