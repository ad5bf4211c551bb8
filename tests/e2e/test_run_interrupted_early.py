"""`gpuinfra run`, interrupted before its job: it ends the machine only if it has switched it on."""

import signal
from pathlib import Path

import pytest

from tests.e2e.azure import Azure
from tests.e2e.jobs import open_terminal
from tests.e2e.run_help import Start, clients, is_off, make_other_user, project
from tests.e2e.test_host_key_pins import make_colleague
from tests.e2e.test_runs_at_risk import is_job_running, run_unfetched_job, start_job
from tests.e2e.user import PARTS, User
from tests.variants import variants

ON = "PowerState/running"
CTRL_C = b"\x03"


@pytest.fixture
def user(user: User) -> User:
    project(user)
    return user


@pytest.mark.parametrize("after_run", variants("delete", "deallocate"))
def test_interrupt_leaves_a_machine_that_was_already_on(
    user: User, azure: Azure, tmp_path: Path, after_run: str
) -> None:
    run = start_job(user) if after_run == "deallocate" else run_unfetched_job(user, azure)
    before = azure.last_request()
    azure.fault("hold-before", method="GET", type="virtualMachines")
    with clients(make_other_user(user, tmp_path)) as start:
        client = start("run", "--after-run", after_run, "gpu.yaml", "quick.py")
        client.until_held()
        client.send(signal.SIGINT)
        azure.clear_faults()
        assert client.end() == 130, client.said
    assert azure.writes(before) == []
    assert "my-dsvm is left as it is" in client.err
    assert after_run == "delete" or is_job_running(azure, run)
    assert after_run == "deallocate" or user.does("outputs", run)["files"]


def test_interrupt_at_the_question_about_an_unknown_machine_changes_nothing(
    user: User, azure: Azure, tmp_path: Path
) -> None:
    other = make_colleague(user, azure, tmp_path)
    project(other)
    other.up()
    before = azure.last_request()
    with open_terminal(user, "run", "--after-run", "delete", "gpu.yaml", "quick.py") as terminal:
        terminal.wait_for_text(b"Use this machine?")
        terminal.type_until(CTRL_C, b"left as it is")
        assert terminal.wait_for_exit() == 130
    assert azure.writes(before) == []
    assert azure.machine()["powerState"] == ON


def test_interrupt_does_not_end_a_machine_created_by_another_user_a_moment_before(
    user: User, azure: Azure, start: Start, tmp_path: Path
) -> None:
    other = make_colleague(user, azure, tmp_path)
    project(other)
    azure.fault("hold-before", method="PUT", type="virtualMachines")
    client = start("run", "--after-run", "delete", "gpu.yaml", "quick.py")
    client.until_held()
    azure.fault("never-ends", method="PUT", type="virtualMachines")
    with clients(other) as start_theirs:
        theirs = start_theirs("up", "gpu.yaml")
        theirs.until(lambda: "virtualMachines/my-dsvm" in azure.everything())
        before = azure.last_request()
        azure.clear_faults()
        client.until_says("already being created")
        client.send(signal.SIGINT)
        assert client.end() == 130, client.said
    assert "my-dsvm is left as it is" in client.err
    assert not [each for each in azure.writes(before) if each.startswith(("DELETE", "POST"))]
    assert azure.machine()["properties"]["provisioningState"] == "Creating"


def test_interrupt_deletes_a_machine_that_the_run_created(user: User, azure: Azure, start: Start) -> None:
    azure.fault("ssh-refuses")
    client = start("run", "--after-run", "delete", "gpu.yaml", "quick.py")
    client.until_says("waiting for SSH")
    client.send(signal.SIGINT)
    assert client.end() == 130, client.said
    assert azure.everything() == []


def test_interrupt_keeps_the_disk_of_a_machine_that_the_run_started(user: User, azure: Azure, tmp_path: Path) -> None:
    run = run_unfetched_job(user, azure)
    user.down("my-dsvm")
    azure.fault("ssh-refuses")
    with clients(make_other_user(user, tmp_path)) as start:
        client = start("run", "--after-run", "delete", "gpu.yaml", "quick.py")
        client.until_says("waiting for SSH")
        client.send(signal.SIGINT)
        assert client.end() == 130, client.said
    assert is_off(azure)
    assert azure.everything() == PARTS
    azure.clear_faults()
    user.up()
    assert user.does("outputs", run)["files"]
