"""Machines that go off under a job that somebody follows: the client finds out soon, and says what to do."""

import json
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.impatient import impatient
from tests.e2e.jobs import ended, reads
from tests.e2e.run_help import guest_home, is_off, project, runs_of
from tests.e2e.user import User

MACHINE = "Microsoft.Compute/virtualMachines"


@pytest.fixture
def user(user: User) -> User:
    project(user)
    return user


def deallocate(azure: Azure) -> None:
    """What the machine's agent does, or Azure itself when it takes a spot machine back."""
    status, answer = azure.send("POST", f"{azure.id(MACHINE, 'my-dsvm')}/deallocate")
    assert status == 202, answer


def only(user: User) -> dict[str, Any]:
    (run,) = runs_of(user)
    return run


def test_an_evicted_machine_is_proven_off_and_its_run_is_found_again(user: User, azure: Azure) -> None:
    with impatient(user, "run", "gpu.yaml", "waits.py") as client:
        reads(client, "begun\n")
        folder = guest_home(azure) / ".gpuinfra" / "runs" / only(user)["id"]
        assert json.loads((folder / "attended.json").read_text()) == {"afterRun": "deallocate"}
        # So late that nobody hears of more than that it is about to be.
        (folder / "ending.json").write_text(json.dumps({"how": "evicted", "detail": "Azure wants it back"}))
        before = (folder / "attended.json").stat().st_mtime
        while (folder / "attended.json").stat().st_mtime == before:
            assert client.poll() is None
        deallocate(azure)
        code, _, errors = ended(client)
    run = only(user)
    assert (code, run["state"], run["exitCode"]) == (1, "evicted", None), errors
    assert run["reason"] == "evicted: Azure wants it back"
    assert not run["outputs"]["complete"]
    assert "verified" in errors
    assert "was evicted" in errors
    assert f"`gpuinfra outputs {run['id']}`" in errors
    assert "`gpuinfra up SPEC`" in errors
    assert is_off(azure)

    user.up()
    user.does("outputs", run["id"])
    again = only(user)
    assert (again["state"], again["reason"]) == ("evicted", "evicted: Azure wants it back")
    assert again["outputs"]["complete"]
    assert (user.workspace / ".gpuinfra" / "runs" / run["id"] / "outputs" / "early.txt").read_text() == "early"


def test_outputs_of_another_workspace_do_not_go_with_the_disk(user: User, azure: Azure) -> None:
    user.up()
    assert user("submit", "-c", "my_dsvm", "--detach", "waits.py").returncode == 0
    run = only(user)["id"]
    # The machine knows of it still.
    (user.workspace / ".gpuinfra" / "runs.db").unlink()
    refused = user.fails("down", "--delete", "my-dsvm", code="needs-consent", exit_code=4)
    assert run in refused["note"]
    assert azure.machine()["powerState"] == "PowerState/running"
    assert user.down("--delete", "--yes", "my-dsvm")["verifiedBy"] == "404"


def test_a_machine_that_somebody_switches_off_leaves_a_run_that_can_be_found_again(user: User, azure: Azure) -> None:
    user.up()
    with impatient(user, "submit", "-c", "my_dsvm", "waits.py") as client:
        reads(client, "begun\n")
        deallocate(azure)
        code, _, errors = ended(client)
    run = only(user)
    assert (code, run["state"]) == (255, "lost"), errors
    assert "my-dsvm is deallocat" in errors
    assert f"`gpuinfra up SPEC`, then `gpuinfra outputs {run['id']}` fetches what it wrote" in errors
    assert run["reason"].startswith("my-dsvm was deallocated")
    # Whoever asks for it now is told at once why there is no answer.
    assert user.fails("logs", "-f", run["id"], code="machine-is-off", exit_code=255)
