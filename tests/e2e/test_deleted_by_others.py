"""A machine that others deleted while a job ran on it: every command names the same time, cost and outcome."""

import time
from datetime import datetime

import pytest

from tests.e2e.azure import Azure
from tests.e2e.run_help import guest_home, project, runs_of
from tests.e2e.user import User
from tests.sshd import eventually
from tests.variants import variants

MACHINE = "Microsoft.Compute/virtualMachines"
SECONDS = 60.0
# Time between the deletion and the next command; the run must not include it.
AFTERWARDS = 4.0


@pytest.fixture
def run(user: User, azure: Azure) -> str:
    """Return the id of a detached run whose machine was deleted some seconds ago."""
    project(user, idle="5h")
    user.up()
    user.patch = {"gpuinfra.app.settlement.SECONDS": SECONDS}
    done = user("submit", "-c", "my_dsvm", "--detach", "waits.py")
    assert done.returncode == 0, done.stderr
    assert eventually(lambda: bool(list(guest_home(azure).rglob("early.txt"))), SECONDS)
    assert azure.send("DELETE", azure.id(MACHINE, "my-dsvm"))[0] in {200, 202, 204}
    time.sleep(AFTERWARDS)
    return str(runs_of(user)[0]["id"])


def cost_of(user: User, run: str) -> float:
    rows = user.does("cost", "--by", "run")["cost"]["rows"]
    return float(next(row["computeUsd"] for row in rows if row["label"] == run))


@pytest.mark.parametrize("command", variants(["runs"], ["down", "my-dsvm", "--delete", "--yes"]), ids=["runs", "down"])
def test_runs_and_cost_agree_on_a_run_of_a_deleted_machine(
    user: User, azure: Azure, run: str, command: list[str]
) -> None:
    user.does(*command)
    (found,) = user.does("runs")["runs"]
    assert found["state"] == "lost"
    assert found["costUsd"] == cost_of(user, run)
    (machine,) = azure.bill()
    ended = datetime.fromisoformat(machine["timeline"][-1]["from"])
    assert abs((datetime.fromisoformat(found["ended"]) - ended).total_seconds()) < 1


@pytest.mark.parametrize("options", variants([], ["--delete", "--yes"]), ids=["down", "delete"])
def test_receipt_of_a_machine_that_others_deleted_has_its_cost(
    user: User, azure: Azure, run: str, options: list[str]
) -> None:
    (receipt,) = user.does("down", "my-dsvm", *options)["receipts"]
    (machine,) = azure.bill()
    assert (receipt["verifiedBy"], receipt["size"]) == ("404", "Standard_NC4as_T4_v3")
    assert receipt["cause"].endswith("by Azure's log")
    assert receipt["billedSeconds"] == pytest.approx(machine["billedSeconds"], abs=1.1)
    assert receipt["costUsd"] == pytest.approx(machine["costUsd"], abs=0.0003)
    assert runs_of(user)[0]["id"] == run


@pytest.mark.parametrize("command", variants(["outputs"], ["logs"], ["logs", "-f"]), ids=" ".join)
def test_no_command_offers_to_fetch_outputs_from_a_deleted_disk(user: User, run: str, command: list[str]) -> None:
    user.does("runs")
    done = user(*command, run)
    assert "my-dsvm was deleted" in done.stderr
    assert f"`gpuinfra outputs {run} --list`" in done.stderr
    assert "gpuinfra up" not in done.stderr
    listed = user("outputs", run, "--list")
    assert "early.txt" not in listed.stdout
    assert "is the machine on" not in listed.stderr


def test_client_that_follows_a_job_stops_when_its_machine_is_deleted(user: User, azure: Azure) -> None:
    project(user, idle="5h")
    user.up()
    client = user.start("submit", "-c", "my_dsvm", "waits.py")
    assert eventually(lambda: bool(list(guest_home(azure).rglob("early.txt"))), SECONDS)
    assert azure.send("DELETE", azure.id(MACHINE, "my-dsvm"))[0] in {200, 202, 204}
    _, messages = client.communicate(timeout=100)
    assert runs_of(user)[0]["state"] == "lost"
    assert "my-dsvm is gone" in messages
    assert "what was not fetched is lost" in messages
    assert "gpuinfra up" not in messages
