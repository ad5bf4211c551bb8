"""A cancel that does not reach the machine leaves the run running, and says so."""

import pytest

from tests.e2e.azure import Azure
from tests.e2e.run_help import guest_home, hide_machine, project, runs_of, show_machine
from tests.e2e.user import User
from tests.variants import variant


@pytest.fixture
def user(user: User) -> User:
    project(user)
    user.up()
    return user


def test_undelivered_cancel_fails_and_the_run_is_recorded_as_it_ends(user: User, azure: Azure) -> None:
    assert user("submit", "-c", "my_dsvm", "--detach", "waits.py").returncode == 0
    run = runs_of(user)[0]["id"]
    hide_machine(user, azure)
    problem = user.fails("cancel", run, code="no-answer", exit_code=1)
    assert f"`gpuinfra cancel {run}`" in problem["help"]
    assert "`gpuinfra down my-dsvm`" in problem["help"]
    assert "the job was not cancelled" in problem["note"]
    (found,) = runs_of(user)
    assert (found["state"], found["reason"]) == ("running", "")

    show_machine(user, azure)
    (guest_home(azure) / "go").touch()
    followed = user("logs", "-f", run)
    assert followed.returncode == 0, followed.stderr
    assert runs_of(user)[0]["state"] == "completed"


@variant
def test_cancel_of_a_run_whose_machine_is_off_says_that_it_is_over(user: User, azure: Azure) -> None:
    assert user("submit", "-c", "my_dsvm", "--detach", "waits.py").returncode == 0
    run = runs_of(user)[0]["id"]
    status, _ = azure.send("POST", f"{azure.id('Microsoft.Compute/virtualMachines', 'my-dsvm')}/deallocate")
    assert status == 202
    done = user("cancel", run)
    assert done.returncode == 0, done.stderr
    assert "the job had already ended" in done.stderr
    (found,) = runs_of(user)
    assert found["state"] == "lost"
    assert found["reason"].startswith("my-dsvm was deallocated")
