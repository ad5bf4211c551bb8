"""Machines that go off during a followed job: the client notices soon, and says what to do."""

import json
from typing import Any

import pytest

from tests.e2e.azure import Azure, change_power
from tests.e2e.impatient import start_impatient
from tests.e2e.jobs import expect_line, wait_for_exit
from tests.e2e.run_help import forget_runs, guest_home, is_off, project, runs_of
from tests.e2e.user import User
from tests.variants import variant

MACHINE = "Microsoft.Compute/virtualMachines"


@pytest.fixture
def user(user: User) -> User:
    project(user)
    return user


def only(user: User) -> dict[str, Any]:
    (run,) = runs_of(user)
    return run


def test_evicted_run_is_verified_off_and_can_be_fetched_later(user: User, azure: Azure) -> None:
    with start_impatient(user, "run", "gpu.yaml", "waits.py") as client:
        expect_line(client, "begun\n")
        folder = guest_home(azure) / ".gpuinfra" / "runs" / only(user)["id"]
        assert json.loads((folder / "attended.json").read_text()) == {"afterRun": "deallocate"}
        # So late that only the notice can be recorded.
        (folder / "ending.json").write_text(json.dumps({"how": "evicted", "detail": "Azure wants it back"}))
        before = (folder / "attended.json").stat().st_mtime
        while (folder / "attended.json").stat().st_mtime == before:
            assert client.poll() is None
        change_power(azure, "deallocate")
        code, _, errors = wait_for_exit(client)
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
    # The machine still has its record.
    forget_runs(user)
    refused = user.fails("down", "--delete", "my-dsvm", code="needs-consent", exit_code=4)
    assert run in refused["note"]
    assert azure.machine()["powerState"] == "PowerState/running"
    assert user.down("--delete", "--yes", "my-dsvm")["verifiedBy"] == "404"


@variant
def test_run_on_a_deallocated_machine_can_be_fetched_later(user: User, azure: Azure) -> None:
    user.up()
    with start_impatient(user, "submit", "-c", "my_dsvm", "waits.py") as client:
        expect_line(client, "begun\n")
        change_power(azure, "deallocate")
        code, _, errors = wait_for_exit(client)
    run = only(user)
    assert (code, run["state"]) == (255, "lost"), errors
    assert "my-dsvm is deallocat" in errors
    assert f"`gpuinfra up SPEC`, then `gpuinfra outputs {run['id']}` fetches what it wrote" in errors
    assert run["reason"].startswith("my-dsvm was deallocated")
    # A later command reports at once why the machine does not answer.
    assert user.fails("logs", "-f", run["id"], code="machine-is-off", exit_code=255)
