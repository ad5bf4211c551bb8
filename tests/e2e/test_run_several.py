"""`gpuinfra run` of several specs: each job on its own machine, at the same time, and every machine is ended."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.jobs import open_terminal
from tests.e2e.run_help import SPEC, Start, run_job, runs_of
from tests.e2e.user import LARGER_SIZE, User

# Waits until the jobs of all machines run, which it knows from a folder of this computer.
MEETS = """
import os, pathlib, sys, time
folder, count, *rest = sys.argv[1:]
pathlib.Path("outputs/result.txt").write_text(os.environ["GPUINFRA_RUN_ID"])
pathlib.Path(folder, os.environ["GPUINFRA_RUN_ID"]).touch()
ends = time.monotonic() + 100
while len(os.listdir(folder)) < int(count) or rest == ["forever"]:
    if len(os.listdir(folder)) == int(count) and rest:
        print("all met", flush=True)
        time.sleep(100)
    if time.monotonic() > ends:
        sys.exit(99)
    time.sleep(0.02)
print("met", flush=True)
"""


@pytest.fixture
def user(user: User, tmp_path: Path) -> User:
    (user.workspace / "specs").mkdir()
    (user.workspace / "meets.py").write_text(MEETS)
    (tmp_path / "met").mkdir()
    return user


def describe(user: User, *names: str, **fields: Any) -> None:
    """Write the specs of these machines into the folder `specs`."""
    for name in names:
        user.spec(file=f"specs/{name}.yaml", **{**SPEC, "name": name, **fields})


def meeting(tmp_path: Path, *words: str) -> dict[str, Any]:
    """Return a job that ends, without further words, when two of it run."""
    return {"command": ["python3", "meets.py", str(tmp_path / "met"), "2", *words]}


def powers(azure: Azure) -> dict[str, str]:
    """Return the state of each machine by the sandbox's meter."""
    return {str(each["name"]): str(each["powerState"]) for each in azure.bill()}


def test_jobs_run_at_the_same_time_and_each_machine_goes_off(user: User, azure: Azure, tmp_path: Path) -> None:
    describe(user, "alpha", "beta", job=meeting(tmp_path))
    done = user("run", "specs/alpha.yaml", "specs/beta.yaml")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[alpha] met", "[beta] met"]
    assert {"[alpha] completed (simulated), off", "[beta] completed (simulated), off"} <= set(done.stderr.splitlines())
    assert done.stderr.count("Azure reports PowerState/deallocated") == 2
    assert powers(azure) == {"alpha": "deallocated", "beta": "deallocated"}
    for run in runs_of(user):
        assert (run["state"], run["outputs"]["complete"]) == ("completed", True)
        outputs = user.workspace / ".gpuinfra" / "runs" / run["id"] / "outputs"
        assert (outputs / "result.txt").read_text() == run["id"]
        assert user("logs", run["id"]).stdout == "met\n"


def test_failures_do_not_concern_the_other_machines(user: User, azure: Azure, tmp_path: Path) -> None:
    describe(user, "alpha", "delta", job=meeting(tmp_path))
    describe(user, "beta", job={"command": "exit 3"})
    describe(user, "gamma", job={"command": "true"})
    azure.fault("InternalExecutionError", method="PUT", resource="gamma", type="virtualMachines", operation=True)
    results = {each["machine"]: each for each in run_job(user, "specs", exit_code=1)["results"]}
    assert {name: each["exitCode"] for name, each in results.items()} == {"alpha": 0, "beta": 3, "delta": 0, "gamma": 1}
    receipts = [results[name]["receipt"] for name in ("alpha", "beta", "delta")]
    assert [receipt["off"] for receipt in receipts] == [True] * 3
    (problem,) = results["gamma"]["diagnostics"]
    assert (problem["machine"], Path(problem["file"]).name) == ("gamma", "gamma.yaml")
    assert set(powers(azure).values()) <= {"deallocated", "deleted"}


def test_one_bad_spec_refuses_all_with_every_problem(user: User, azure: Azure) -> None:
    describe(user, "alpha", job={"command": "true"})
    describe(user, "beta", job={"command": "python3 lacking.py"})
    describe(user, "gamma", job={"command": "true"}, target={"type": "remote", "name": "alpha"})
    (user.workspace / "specs" / "delta.yaml").write_text("apiVersion: gpuinfra/v1\nname: delta\nsize: nothing\n")
    done = user("run", "--json", "specs")
    assert done.returncode == 2, done.stderr
    found = json.loads(done.stdout)["diagnostics"]
    assert {"beta", "delta", "gamma"} == {each["machine"] for each in found}
    assert all(Path(each["file"]).stem == each["machine"] for each in found)
    assert azure.writes() == []


def test_machines_without_quota_for_all_refuse_the_command(user: User, azure: Azure) -> None:
    describe(user, "alpha", job={"command": "true"})
    describe(user, "beta", job={"command": "true"}, size=LARGER_SIZE)
    azure.limit("southcentralus", 8)
    done = user("run", "--json", "specs")
    assert done.returncode == 1, done.stderr
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert (problem["machine"], problem["code"]) == ("beta", "no-candidate")
    assert azure.writes() == []


def test_refused_question_starts_no_job(user: User, azure: Azure) -> None:
    describe(user, "alpha", "beta", job={"command": "true"})
    user.does("up", "specs/beta.yaml")
    (user.home / ".gpuinfra" / "ssh" / "known_hosts").unlink()  # so that it may be the machine of someone else
    before = azure.last_request()
    done = user("run", "--json", "specs")
    assert done.returncode == 1, done.stderr
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert problem["machine"] == "beta"
    assert azure.writes(before) == []
    assert runs_of(user) == []


def test_interrupt_without_a_terminal_ends_every_machine(
    user: User, azure: Azure, start: Start, tmp_path: Path
) -> None:
    describe(user, "alpha", "beta", "gamma", job=meeting(tmp_path, "forever"))
    azure.fault("ssh-refuses", resource="gamma", count=0)
    client = start("run", "specs")
    client.until(lambda: client.out.count("all met") == 2 and "ssh gamma: waiting for SSH" in client.err)
    client.send(signal.SIGINT)
    assert client.end() == 130, client.said
    assert {run["machine"]: run["state"] for run in runs_of(user)} == {"alpha": "cancelled", "beta": "cancelled"}
    assert all(run["outputs"]["complete"] for run in runs_of(user))
    assert powers(azure) == dict.fromkeys(("alpha", "beta", "gamma"), "deallocated")
    assert client.err.count("Azure reports PowerState/deallocated") == 3


def test_ctrl_c_asks_once_about_all_machines_and_detaches_from_all(user: User, azure: Azure, tmp_path: Path) -> None:
    describe(user, "alpha", "beta", job=meeting(tmp_path, "forever"))
    with open_terminal(user, "run", "specs") as terminal:
        terminal.wait_for_text(b"all met")
        terminal.type_keys(b"\x03")
        terminal.wait_for_text(b"[d]: ")
        shown = " ".join(terminal.seen.decode().split())
        for name in ("alpha", "beta"):
            assert f"{name}: the job finishes, then the agent of {name} switches the machine off, within 2h" in shown
            assert f"{name}: the job ends; {name} is switched off" in shown
        terminal.type_keys(b"d\r")
        assert terminal.wait_for_exit() == 130
    seen = terminal.seen.decode()
    assert "MACHINE  PHASE" in seen
    assert seen.count("when the job has finished, by its guest agent") == 2
    for run in runs_of(user):
        machine = azure.machine(run["machine"], f"gpuinfra-{run['machine']}")
        guest = azure.folder / "guests" / machine["properties"]["vmId"] / "home" / "azureuser"
        left = json.loads((guest / ".gpuinfra" / "runs" / run["id"] / "attended.json").read_text())
        assert (run["state"], left["detached"]) == ("running", True)
    assert powers(azure) == {"alpha": "running", "beta": "running"}


def test_detach_says_when_each_machine_goes_off(user: User, azure: Azure, tmp_path: Path) -> None:
    describe(user, "alpha", "beta", job=meeting(tmp_path, "forever"))
    results = run_job(user, "--detach", "--timeout", "3h", "specs")["results"]
    assert [each["machine"] for each in results] == ["alpha", "beta"]
    for each in results:
        stay = each["receipt"]["staysOn"]
        assert (each["run"]["state"], stay["run"], stay["reason"]) == ("running", each["run"]["id"], "job")
        assert stay["latest"]
        assert stay["mostUsd"] > 0
    assert powers(azure) == {"alpha": "running", "beta": "running"}
