"""`gpuinfra run`, killed in each phase: Azure ends the machine, and the outputs can still be fetched."""

import fcntl
import random
import signal
from typing import Any

import pytest

from gpuinfra.runner.log import LogFile
from gpuinfra.store import History
from tests.e2e.azure import Azure
from tests.e2e.run_help import (
    LEASE,
    MODEL,
    Start,
    guest_home,
    guest_processes,
    is_off,
    project,
    run_job,
    runs_of,
    state_of_job,
    wait_for_job_end,
    wait_until,
)
from tests.e2e.user import User
from tests.variants import variant, variants

# Azure's schedule stops the machine 35 minutes after the lease.
SCHEDULE_SECONDS = 40 * 60


@pytest.fixture
def user(user: User) -> User:
    project(user)
    return user


def end_lease(azure: Azure) -> None:
    """Let the lease end without any further command."""
    azure.clear_faults()
    azure.control("POST", "clock", {"advance": LEASE + SCHEDULE_SECONDS})
    machines = [each for each in azure.everything() if each.startswith("virtualMachines/")]
    assert len(machines) <= 1
    assert not machines or is_off(azure)
    assert not azure.is_billed()
    wait_until(lambda: not guest_processes(azure), "the end of all processes of the guest")


def fetch_outputs(user: User, run: dict[str, Any]) -> dict[str, bytes]:
    """Start the machine, fetch the outputs of the run, and verify that the machine is off again."""
    user.up()
    found = user.does("outputs", run["id"])
    folder = user.workspace / ".gpuinfra" / "runs" / run["id"] / "outputs"
    files = {path.name: path.read_bytes() for path in folder.glob("*")}
    assert {each["name"]: each["size"] for each in found["files"]} == {name: len(each) for name, each in files.items()}
    receipt = user.down("my-dsvm")
    assert receipt["verifiedBy"] == "PowerState/deallocated"
    assert is_off(user.azure)
    return files


def complete_state(user: User) -> str:
    """Return the state of the one run, whose outputs are complete."""
    (run,) = runs_of(user)
    assert run["outputs"]["complete"] is True
    return str(run["state"])


def printed(user: User, run: dict[str, Any]) -> list[str]:
    with LogFile(user.workspace / ".gpuinfra" / "runs" / run["id"] / "log") as log:
        return b"".join(frame.data for frame in log.frames()).decode().splitlines()


def model() -> bytes:
    return random.Random(1).randbytes(MODEL)


# During up

UP: dict[str, dict[str, Any]] = {
    "before the machine exists": {"name": "hold-before", "method": "PUT", "type": "virtualMachines"},
    "after the schedule is set": {"name": "hold-after", "method": "PUT", "type": "schedules"},
}


@pytest.mark.parametrize("point", variants(*UP))
def test_machine_goes_off_after_a_kill_during_its_creation(user: User, azure: Azure, start: Start, point: str) -> None:
    azure.fault(**UP[point])
    client = start("run", "gpu.yaml", "quick.py")
    client.until_held()
    client.kill()
    end_lease(azure)
    assert runs_of(user) == []
    assert user.down("my-dsvm")["off"] is True


def test_machine_goes_off_after_a_kill_while_waiting_for_ssh(user: User, azure: Azure, start: Start) -> None:
    azure.fault("ssh-refuses")
    client = start("run", "gpu.yaml", "quick.py")
    client.until_says("waiting for SSH")
    client.kill()
    assert azure.is_billed()
    end_lease(azure)
    assert runs_of(user) == []


# Before the job


@variant
def test_machine_goes_off_after_a_kill_during_the_upload(user: User, azure: Azure, start: Start) -> None:
    (user.workspace / "data.bin").write_bytes(random.Random(2).randbytes(MODEL))
    client = start("run", "gpu.yaml", "quick.py")
    client.until_says("upload: sending")
    client.kill()
    (run,) = runs_of(user)
    assert (run["state"], run["job"]) == ("preparing", None)
    assert state_of_job(azure, run["id"]) is None
    end_lease(azure)

    # Nothing of the job exists, so the machine is not needed to settle the run.
    assert user("logs", "-f", run["id"]).returncode == 255
    (known,) = runs_of(user)
    assert (known["state"], known["reason"]) == ("lost", "it was interrupted before the job began")
    assert user.does("outputs", run["id"])["files"] == []

    # No other run keeps the machine on.
    again = run_job(user, "gpu.yaml", "quick.py")
    assert again["receipt"]["verifiedBy"] == "PowerState/deallocated"
    assert is_off(azure)


def test_run_killed_before_its_job_started_is_lost(user: User, azure: Azure, start: Start) -> None:
    """The record first says that the job may have started; only the machine knows whether it did."""
    user.up()
    home = guest_home(azure)
    (user.workspace / "data.bin").write_bytes(random.Random(2).randbytes(MODEL))
    client = start("run", "gpu.yaml", "quick.py")
    history = History(user.workspace / ".gpuinfra")
    client.until(history.list)
    run = history.list()[0]
    folder = home / ".gpuinfra" / "runs" / run.id
    folder.mkdir(parents=True, exist_ok=True)
    # The start of a job takes this lock first.
    with (folder / "alive").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        client.until(lambda: history.find(run.id).job)
        client.kill()
        assert state_of_job(azure, run.id) is None
        end_lease(azure)

    assert fetch_outputs(user, {"id": run.id}) == {}
    (known,) = runs_of(user)
    assert (known["state"], known["reason"]) == ("lost", "it was interrupted before the job began")


# The job


@variant
def test_finished_job_is_fetched_after_a_kill(user: User, azure: Azure, start: Start) -> None:
    client = start("run", "gpu.yaml", "waits.py", "7")
    client.until_says("begun")
    client.kill()
    (run,) = runs_of(user)
    (guest_home(azure) / "go").touch()
    wait_for_job_end(azure, run["id"])
    assert azure.is_billed(), "it is still on"
    end_lease(azure)

    assert fetch_outputs(user, run) == {"early.txt": b"early", "late.txt": b"late"}
    assert complete_state(user) == "failed"
    assert runs_of(user)[0]["exitCode"] == 7
    assert user("logs", run["id"]).stdout.splitlines() == ["begun", "ended"]


def test_unfinished_job_is_fetched_after_a_kill_and_the_end_of_the_lease(
    user: User, azure: Azure, start: Start
) -> None:
    client = start("run", "gpu.yaml", "waits.py")
    client.until_says("begun")
    client.kill()
    (run,) = runs_of(user)
    assert run["state"] == "running"
    end_lease(azure)

    assert fetch_outputs(user, run) == {"early.txt": b"early"}
    assert complete_state(user) in {"lost", "cancelled"}, "the machine ended it"
    assert runs_of(user)[0]["reason"]
    assert printed(user, run) == ["begun"]


@variant
def test_finished_job_is_fetched_after_a_kill_before_the_download(user: User, azure: Azure, start: Start) -> None:
    client = start("run", "gpu.yaml", "waits.py")
    client.until_says("begun")
    (run,) = runs_of(user)
    client.send(signal.SIGSTOP)
    (guest_home(azure) / "go").touch()
    wait_for_job_end(azure, run["id"])
    client.kill()
    end_lease(azure)

    assert fetch_outputs(user, run) == {"early.txt": b"early", "late.txt": b"late"}
    assert complete_state(user) == "completed"
    assert printed(user, run) == ["begun", "ended"]


def test_outputs_are_fetched_after_a_kill_during_the_download(user: User, azure: Azure, start: Start) -> None:
    client = start("run", "gpu.yaml", "writes.py")
    client.until_says("outputs: fetching")
    client.kill()
    (run,) = runs_of(user)
    assert run["outputs"]["complete"] is False
    end_lease(azure)

    assert user.fails("down", "--delete", "my-dsvm", code="needs-consent", exit_code=2)["note"].count(run["id"]) == 1
    assert fetch_outputs(user, run) == {"model.bin": model()}
    assert complete_state(user) == "completed"
    assert printed(user, run) == ["ended"]


@pytest.mark.parametrize("fault", variants("hold-before", "hold-after"))
def test_machine_goes_off_after_a_kill_during_its_deallocation(
    user: User, azure: Azure, start: Start, fault: str
) -> None:
    azure.fault(fault, method="POST", type="virtualMachines")
    client = start("run", "gpu.yaml", "quick.py")
    client.until_held()
    client.kill()
    (run,) = runs_of(user)
    assert (run["state"], run["outputs"]["complete"]) == ("completed", True)
    end_lease(azure)
    # All outputs were fetched before.
    assert [each["name"] for each in user.does("outputs", run["id"])["files"]] == ["result.txt"]
    assert printed(user, run) == ["done"]
    assert user.down("my-dsvm")["verifiedBy"] == "PowerState/deallocated"
