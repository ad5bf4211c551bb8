"""`gpuinfra run`, killed in each phase: Azure itself ends the machine, and what the job wrote can be had."""

import fcntl
import random
import signal
import time
from typing import Any

import pytest

from gpuinfra.runner.jobs.log import LogFile
from gpuinfra.runner.results.history import History
from tests.e2e.azure import Azure
from tests.e2e.run_help import (
    LEASE,
    MODEL,
    PAUSE,
    SECONDS,
    Start,
    guest_home,
    guest_processes,
    is_off,
    project,
    ran,
    runs_of,
    state_of_job,
)
from tests.e2e.user import User


@pytest.fixture
def user(user: User) -> User:
    project(user)
    return user


def the_lease_ends(azure: Azure) -> None:
    """Nobody does anything any more, and time goes by."""
    azure.clear_faults()
    azure.control("POST", "clock", {"advance": LEASE + 1800})
    machines = [each for each in azure.everything() if each.startswith("virtualMachines/")]
    assert len(machines) <= 1
    assert not machines or is_off(azure)
    assert not azure.is_billed()
    ends = time.monotonic() + SECONDS
    while guest_processes(azure):
        assert time.monotonic() < ends, "something of the guest still runs"
        time.sleep(PAUSE)


def fetched(user: User, run: dict[str, Any]) -> dict[str, bytes]:
    """The machine is brought up again, and asked for what the job wrote; then it is off again, proven."""
    user.up()
    found = user.does("outputs", run["id"])
    folder = user.workspace / ".gpuinfra" / "runs" / run["id"] / "outputs"
    files = {path.name: path.read_bytes() for path in folder.glob("*")}
    assert {each["name"]: each["size"] for each in found["files"]} == {name: len(each) for name, each in files.items()}
    receipt = user.down("my-dsvm")
    assert receipt["verifiedBy"] == "PowerState/deallocated"
    assert is_off(user.azure)
    return files


def complete(user: User) -> str:
    """The state of the one run, whose outputs are all here."""
    (run,) = runs_of(user)
    assert run["outputs"]["complete"] is True
    return str(run["state"])


def printed(user: User, run: dict[str, Any]) -> list[str]:
    with LogFile(user.workspace / ".gpuinfra" / "runs" / run["id"] / "log") as log:
        return b"".join(frame.data for frame in log.frames()).decode().splitlines()


def model() -> bytes:
    return random.Random(1).randbytes(MODEL)


# Up

UP: dict[str, dict[str, Any]] = {
    "before the machine exists": {"name": "hold-before", "method": "PUT", "type": "virtualMachines"},
    "before anybody knows that its end is set": {"name": "hold-after", "method": "PUT", "type": "schedules"},
}


@pytest.mark.parametrize("point", UP)
def test_killed_while_the_machine_is_made(user: User, azure: Azure, start: Start, point: str) -> None:
    azure.fault(**UP[point])
    client = start("run", "gpu.yaml", "quick.py")
    client.until_held()
    client.kill()
    the_lease_ends(azure)
    assert runs_of(user) == []
    assert user.down("my-dsvm")["off"] is True


def test_killed_while_it_waits_for_ssh(user: User, azure: Azure, start: Start) -> None:
    azure.fault("ssh-refuses")
    client = start("run", "gpu.yaml", "quick.py")
    client.until_says("waiting for SSH")
    client.kill()
    assert azure.is_billed()
    the_lease_ends(azure)
    assert runs_of(user) == []


# Before the job


def test_killed_while_the_project_is_sent(user: User, azure: Azure, start: Start) -> None:
    (user.workspace / "data.bin").write_bytes(random.Random(2).randbytes(MODEL))
    client = start("run", "gpu.yaml", "quick.py")
    client.until_says("upload: sending")
    client.kill()
    (run,) = runs_of(user)
    assert (run["state"], run["job"]) == ("preparing", None)
    assert state_of_job(azure, run["id"]) is None
    the_lease_ends(azure)

    # Nothing of it is anywhere, so nobody needs the machine to know that.
    assert user("logs", "-f", run["id"]).returncode == 255
    (known,) = runs_of(user)
    assert (known["state"], known["reason"]) == ("lost", "it was interrupted before the job began")
    assert user.does("outputs", run["id"])["files"] == []

    # The next run has nobody to keep the machine for.
    again = ran(user, "gpu.yaml", "quick.py")
    assert again["receipt"]["verifiedBy"] == "PowerState/deallocated"
    assert is_off(azure)


def test_killed_just_before_the_job_begins(user: User, azure: Azure, start: Start) -> None:
    """What is written down first is that it may have begun: nobody knows, until the machine is asked."""
    user.up()
    home = guest_home(azure)
    (user.workspace / "data.bin").write_bytes(random.Random(2).randbytes(MODEL))
    client = start("run", "gpu.yaml", "quick.py")
    history = History(user.workspace / ".gpuinfra")
    client.until(history.list)
    run = history.list()[0]
    folder = home / ".gpuinfra" / "runs" / run.id
    folder.mkdir(parents=True, exist_ok=True)
    # Whoever begins a job takes this lock first.
    with (folder / "alive").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        client.until(lambda: history.find(run.id).job)
        client.kill()
        assert state_of_job(azure, run.id) is None
        the_lease_ends(azure)

    assert fetched(user, {"id": run.id}) == {}
    (known,) = runs_of(user)
    assert (known["state"], known["reason"]) == ("lost", "it was interrupted before the job began")


# The job


def test_killed_while_the_job_runs_and_the_job_ends_before_the_lease_does(
    user: User, azure: Azure, start: Start
) -> None:
    client = start("run", "gpu.yaml", "waits.py", "7")
    client.until_says("begun")
    client.kill()
    (run,) = runs_of(user)
    (guest_home(azure) / "go").touch()
    until_over(azure, run)
    assert azure.is_billed(), "nobody has ended it"
    the_lease_ends(azure)

    assert fetched(user, run) == {"early.txt": b"early", "late.txt": b"late"}
    assert complete(user) == "failed"
    assert runs_of(user)[0]["exitCode"] == 7
    assert user("logs", run["id"]).stdout.splitlines() == ["begun", "ended"]


def test_killed_while_the_job_runs_and_so_it_does_at_the_end_of_the_lease(
    user: User, azure: Azure, start: Start
) -> None:
    client = start("run", "gpu.yaml", "waits.py")
    client.until_says("begun")
    client.kill()
    (run,) = runs_of(user)
    assert run["state"] == "running"
    the_lease_ends(azure)

    assert fetched(user, run) == {"early.txt": b"early"}
    assert complete(user) in {"lost", "cancelled"}, "the machine ended it"
    assert runs_of(user)[0]["reason"]
    assert printed(user, run) == ["begun"]


def test_killed_when_the_job_has_ended_and_nothing_is_fetched(user: User, azure: Azure, start: Start) -> None:
    client = start("run", "gpu.yaml", "waits.py")
    client.until_says("begun")
    (run,) = runs_of(user)
    client.send(signal.SIGSTOP)
    (guest_home(azure) / "go").touch()
    until_over(azure, run)
    client.kill()
    the_lease_ends(azure)

    assert fetched(user, run) == {"early.txt": b"early", "late.txt": b"late"}
    assert complete(user) == "completed"
    assert printed(user, run) == ["begun", "ended"]


def test_killed_while_outputs_are_fetched(user: User, azure: Azure, start: Start) -> None:
    client = start("run", "gpu.yaml", "writes.py")
    client.until_says("outputs: fetching")
    client.kill()
    (run,) = runs_of(user)
    assert run["outputs"]["complete"] is False
    the_lease_ends(azure)

    assert user.fails("down", "--delete", "my-dsvm", code="needs-consent", exit_code=2)["note"].count(run["id"]) == 1
    assert fetched(user, run) == {"model.bin": model()}
    assert complete(user) == "completed"
    assert printed(user, run) == ["ended"]


@pytest.mark.parametrize("fault", ["hold-before", "hold-after"])
def test_killed_while_the_machine_is_switched_off(user: User, azure: Azure, start: Start, fault: str) -> None:
    azure.fault(fault, method="POST", type="virtualMachines")
    client = start("run", "gpu.yaml", "quick.py")
    client.until_held()
    client.kill()
    (run,) = runs_of(user)
    assert (run["state"], run["outputs"]["complete"]) == ("completed", True)
    the_lease_ends(azure)
    # All of it was here before.
    assert [each["name"] for each in user.does("outputs", run["id"])["files"]] == ["result.txt"]
    assert printed(user, run) == ["done"]
    assert user.down("my-dsvm")["verifiedBy"] == "PowerState/deallocated"


def until_over(azure: Azure, run: dict[str, Any]) -> None:
    """The machine itself has written down how the job ended."""
    ends = time.monotonic() + SECONDS
    while "ended" not in (state_of_job(azure, run["id"]) or {}):
        assert time.monotonic() < ends, "the job does not end"
        time.sleep(PAUSE)
