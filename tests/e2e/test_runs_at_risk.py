"""`up` and `down` ask before they stop a run or lose outputs; without a terminal they need an option."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.e2e.azure import Azure
from tests.e2e.foreign import ADDRESSES, INTERFACES
from tests.e2e.jobs import Terminal, open_terminal
from tests.e2e.run_help import forget_runs, guest_home, is_off, make_other_user, project, runs_of, state_of_job
from tests.e2e.user import LARGER_SIZE, OTHER_REGION, PARTS, User, inherited, run_reap
from tests.lab import LabUser
from tests.sshd import eventually
from tests.variants import variant, variants

RESIZE: dict[str, Any] = {"size": LARGER_SIZE}
MOVE: dict[str, Any] = {"region": OTHER_REGION}
OFF: dict[str, Any] = {"power": "deallocated"}


@pytest.fixture
def user(user: User) -> User:
    """A user whose project has scripts."""
    project(user)
    return user


def start_job(user: User) -> str:
    """Start a job on `my-dsvm` that runs until the test ends it, and return its id."""
    user.up()
    done = user("submit", "-c", "my_dsvm", "--detach", "waits.py")
    assert done.returncode == 0, done.stderr
    (run,) = runs_of(user)
    return str(run["id"])


def run_unfetched_job(user: User, azure: Azure) -> str:
    """Run a job whose outputs were not fetched, and return its id."""
    run = start_job(user)
    (guest_home(azure) / "go").touch()
    assert eventually(lambda: "ended" in (state_of_job(azure, run) or {}), 60)
    return run


def is_job_running(azure: Azure, run: str) -> bool:
    state = state_of_job(azure, run)
    return state is not None and "ended" not in state


def change_spec(user: User, **fields: Any) -> None:
    """Write the usual spec for jobs with changed fields."""
    user.spec(target={"type": "remote"}, lifecycle={"lease": "2h"}, **fields)


@contextmanager
def open_question(user: User, *words: str) -> Iterator[Terminal]:
    """Run the program on a terminal up to its question."""
    with open_terminal(cast("LabUser", user), *words, "--sandbox") as terminal:
        terminal.wait_for_text(b"Continue?")
        yield terminal


# Changes that stop a job


@pytest.mark.parametrize("change", variants(RESIZE, OFF), ids=["resize", "power-off"])
def test_up_without_a_terminal_does_not_stop_a_running_job(user: User, azure: Azure, change: dict[str, Any]) -> None:
    run = start_job(user)
    change_spec(user, **change)
    before = azure.last_request()
    refused = user.fails("up", "gpu.yaml", code="needs-consent", exit_code=2)
    assert run in refused["note"]
    assert "waits.py" in refused["note"]
    assert "--yes" in refused["help"]
    assert azure.writes(before) == []
    assert is_job_running(azure, run)


@variant
def test_up_with_yes_restarts_a_machine_with_a_running_job(user: User, azure: Azure) -> None:
    start_job(user)
    change_spec(user, **RESIZE)
    user.up("--yes")
    assert azure.machine()["properties"]["hardwareProfile"]["vmSize"] == LARGER_SIZE


@variant
def test_up_on_a_terminal_lists_the_runs_that_a_resize_stops(user: User, azure: Azure) -> None:
    run = start_job(user)
    change_spec(user, **RESIZE)
    before = azure.last_request()
    with open_question(user, "up", "gpu.yaml") as terminal:
        screen = terminal.seen.decode()
        assert run in screen
        assert "waits.py" in screen
        assert "running" in screen
        terminal.type_keys(b"n\n")
        assert terminal.wait_for_exit() == 2
    assert azure.writes(before) == []
    assert is_job_running(azure, run)


@variant
def test_up_counts_runs_of_other_workspaces(user: User, azure: Azure, tmp_path: Path) -> None:
    run = start_job(user)
    other = make_other_user(user, tmp_path)
    change_spec(other, **RESIZE)
    before = azure.last_request()
    assert run in other.fails("up", "gpu.yaml", code="needs-consent", exit_code=2)["note"]
    assert azure.writes(before) == []


@variant
def test_up_resizes_without_a_question_when_no_job_runs(user: User, azure: Azure) -> None:
    run_unfetched_job(user, azure)
    change_spec(user, **RESIZE)
    user.up()
    assert azure.machine()["properties"]["hardwareProfile"]["vmSize"] == LARGER_SIZE


def test_down_without_a_terminal_does_not_stop_a_running_job(user: User, azure: Azure, tmp_path: Path) -> None:
    run = start_job(user)
    for caller in (user, make_other_user(user, tmp_path)):
        refused = caller.fails("down", "my-dsvm", code="needs-consent", exit_code=4)
        assert run in refused["note"]
        assert "billed" in refused["note"]
        assert "gpuinfra down my-dsvm --yes --sandbox" in refused["help"]
        assert is_job_running(azure, run)
    azure.control("POST", "clock", {"advance": 3 * 3600})
    assert is_off(azure), "the lease still ends it"


def test_down_with_yes_stops_a_running_job_and_keeps_its_outputs(user: User, azure: Azure) -> None:
    start_job(user)
    assert user.down("my-dsvm", "--yes")["off"] is True
    assert is_off(azure)
    assert azure.everything() == PARTS


def test_down_on_a_terminal_asks_before_it_stops_a_running_job(user: User, azure: Azure) -> None:
    run = start_job(user)
    with open_question(user, "down", "my-dsvm") as terminal:
        assert run in terminal.seen.decode()
        terminal.type_keys(b"n\n")
        assert terminal.wait_for_exit() == 4
    assert is_job_running(azure, run)
    with open_question(user, "down", "my-dsvm") as terminal:
        terminal.type_keys(b"y\n")
        assert terminal.wait_for_exit() == 0
    assert is_off(azure)


def test_down_continues_when_the_machine_cannot_be_asked(user: User, azure: Azure, tmp_path: Path) -> None:
    """Nothing is lost by it, and a machine without a working login must not stay billed."""
    start_job(user)
    other = User(azure, tmp_path / "other", tmp_path / "elsewhere", key=False)
    done = other("down", "my-dsvm")
    assert done.returncode == 0, done.stderr
    assert "its runs are unknown" in done.stderr
    assert is_off(azure)


def test_down_on_a_terminal_asks_before_it_stops_a_machine_that_refuses_the_login(
    user: User, azure: Azure, tmp_path: Path
) -> None:
    """Another user may have created it under the same name, and a job may run there."""
    run = start_job(user)
    other = User(azure, tmp_path / "other", tmp_path / "elsewhere")
    project(other)
    before = azure.last_request()
    with open_question(other, "down", "gpu.yaml") as terminal:
        assert "does not accept your SSH key" in terminal.seen.decode()
        terminal.type_keys(b"n\n")
        assert terminal.wait_for_exit() == 4, "it is on, and billed"
    assert azure.writes(before) == []
    assert is_job_running(azure, run)


def test_release_of_the_lease_stops_a_running_job_only_with_consent(user: User, azure: Azure) -> None:
    run = start_job(user)
    before, until = azure.last_request(), azure.machine()["tags"]["gpuinfra:lease-until"]
    refused = user.fails("lease", "my-dsvm", "--release", code="needs-consent", exit_code=4)
    assert run in refused["note"]
    assert "`gpuinfra lease my-dsvm --release --yes --sandbox`" in refused["help"]
    assert azure.writes(before) == []
    assert user("lease", "my-dsvm", "--release", "--yes").returncode == 0
    assert azure.machine()["tags"]["gpuinfra:lease-until"] < until


# Changes that lose outputs


@pytest.mark.parametrize("words", variants(["--yes"], []), ids=["yes", "plain"])
def test_up_does_not_replace_a_machine_with_a_running_job(user: User, azure: Azure, words: list[str]) -> None:
    run = start_job(user)
    change_spec(user, **MOVE)
    before = azure.last_request()
    refused = user.fails("up", "gpu.yaml", *words, code="needs-consent", exit_code=2)
    assert run in refused["note"]
    assert "--delete --yes" in refused["help"]
    assert azure.writes(before) == []
    assert is_job_running(azure, run)


def test_up_does_not_replace_a_machine_with_unfetched_outputs(user: User, azure: Azure, tmp_path: Path) -> None:
    run = run_unfetched_job(user, azure)
    for caller in (user, make_other_user(user, tmp_path)):
        change_spec(caller, **MOVE)
        before = azure.last_request()
        assert run in caller.fails("up", "gpu.yaml", "--yes", code="needs-consent", exit_code=2)["note"]
        assert azure.writes(before) == []


def delete_address(azure: Azure) -> None:
    """As by hand in the portal: dissociated, then deleted."""
    nic = azure.part(INTERFACES, "my-dsvm-nic")
    for configuration in nic["properties"]["ipConfigurations"]:
        del configuration["properties"]["publicIPAddress"]
    azure.put(azure.id(INTERFACES, "my-dsvm-nic"), nic)
    azure.send("DELETE", azure.id(ADDRESSES, "my-dsvm-ip"))


def test_up_keeps_a_machine_that_failed_to_start_twice_and_lost_its_address(user: User, azure: Azure) -> None:
    run_unfetched_job(user, azure)
    user.down("my-dsvm")
    vm = azure.machine()["properties"]["vmId"]
    azure.fault("AllocationFailed", method="POST", type="virtualMachines", count=2)
    user.fails("up", "gpu.yaml", code="no-capacity")
    delete_address(azure)
    user.fails("up", "gpu.yaml", code="no-capacity")
    assert azure.machine()["properties"]["provisioningState"] == "Failed"
    user.up()
    assert azure.machine()["properties"]["vmId"] == vm
    assert user("outputs", "last", "results").returncode == 0


def test_failed_machine_without_its_mark_is_deleted_only_with_the_consent_of_down(
    user: User, azure: Azure, tmp_path: Path
) -> None:
    run_unfetched_job(user, azure)
    user.down("my-dsvm")
    azure.fault("AllocationFailed", method="POST", type="virtualMachines")
    user.fails("up", "gpu.yaml", code="no-capacity")
    azure.send("PATCH", azure.id(ADDRESSES, "my-dsvm-ip"), {"tags": {"gpuinfra:name": "my-dsvm"}})
    other, before = make_other_user(user, tmp_path), azure.last_request()
    for words in ([], ["--yes"]):
        refused = other.fails("up", "gpu.yaml", *words, code="needs-consent", exit_code=2)
        assert "az vm start --resource-group gpuinfra-my-dsvm --name my-dsvm" in refused["help"]
    other.fails("down", "my-dsvm", "--delete", code="needs-consent", exit_code=2)
    assert azure.writes(before) == []


@variant
def test_up_on_a_terminal_lists_the_outputs_that_a_replacement_loses(user: User, azure: Azure) -> None:
    run = run_unfetched_job(user, azure)
    change_spec(user, **MOVE)
    before = azure.last_request()
    with open_question(user, "up", "gpu.yaml", "--yes") as terminal:
        screen = terminal.seen.decode()
        assert run in screen
        assert "not fetched" in screen
        assert "forces replacement" in screen
        terminal.type_keys(b"n\n")
        assert terminal.wait_for_exit() == 2
    assert azure.writes(before) == []


@variant
def test_up_replaces_with_delete_and_yes(user: User, azure: Azure) -> None:
    run_unfetched_job(user, azure)
    change_spec(user, **MOVE)
    user.up("--delete", "--yes")
    assert azure.machine()["location"] == OTHER_REGION


def test_disk_of_a_machine_that_is_off_may_hold_outputs(user: User, azure: Azure, tmp_path: Path) -> None:
    run_unfetched_job(user, azure)
    user.down("my-dsvm")
    other = make_other_user(user, tmp_path)
    change_spec(other, **MOVE)
    before = azure.last_request()
    for words, code in ((["up", "gpu.yaml", "--yes"], 2), (["down", "my-dsvm", "--delete"], 2)):
        refused = other.fails(*words, code="needs-consent", exit_code=code)
        assert "may hold outputs" in refused["note"]
        assert "--delete --yes" in refused["help"]
        assert azure.writes(before) == []
    assert other.down("my-dsvm", "--delete", "--yes")["verifiedBy"] == "404"


# Deletion


def test_down_delete_on_a_terminal_lists_what_is_lost(user: User, azure: Azure) -> None:
    run = run_unfetched_job(user, azure)
    before = azure.last_request()
    with open_question(user, "down", "my-dsvm", "--delete") as terminal:
        screen = terminal.seen.decode()
        for word in (run, "waits.py", "not fetched", "shared folder", "disk"):
            assert word in screen
        terminal.type_keys(b"n\n")
        assert terminal.wait_for_exit() == 4, "it is on, and billed"
    assert azure.writes(before) == []


@variant
def test_down_delete_on_a_terminal_asks_when_nothing_is_known_to_be_lost(user: User, azure: Azure) -> None:
    user.up()
    with open_question(user, "down", "my-dsvm", "--delete") as terminal:
        assert "shared folder" in terminal.seen.decode()
        terminal.type_keys(b"y\n")
        assert terminal.wait_for_exit() == 0
    assert azure.everything() == []


def test_down_delete_does_not_stop_a_job_that_began_during_its_question(user: User, azure: Azure) -> None:
    user.up()
    with open_question(user, "down", "my-dsvm", "--delete") as terminal:
        run = start_job(user)
        before = azure.last_request()
        terminal.type_keys(b"y\n")
        assert terminal.wait_for_exit() == 4, "it is on, and billed"
        assert run in terminal.seen.decode()
    assert azure.writes(before) == []
    assert is_job_running(azure, run)


@variant
def test_down_delete_with_yes_asks_nothing_on_a_terminal(user: User, azure: Azure) -> None:
    run_unfetched_job(user, azure)
    with open_terminal(cast("LabUser", user), "down", "my-dsvm", "--delete", "--yes", "--sandbox") as terminal:
        assert terminal.wait_for_exit() == 0
        assert b"Continue?" not in terminal.seen
    assert azure.everything() == []


@variant
def test_interrupted_question_changes_nothing(user: User, azure: Azure) -> None:
    run = start_job(user)
    with open_question(user, "down", "my-dsvm") as terminal:
        terminal.type_until(bytes([signal.SIGINT + 1]), b"interrupted")
        assert terminal.wait_for_exit() == 130
    assert is_job_running(azure, run)


# Commands that are not affected


@variant
def test_run_ends_its_own_machine_without_a_question(user: User, azure: Azure) -> None:
    done = user("run", "gpu.yaml", "quick.py")
    assert done.returncode == 0, done.stderr
    assert is_off(azure)


# Reap


def commit_spec(user: User) -> None:
    """Commit the spec."""
    commit(user, "init -q", "add gpu.yaml", "commit -qm one")


def delete_spec(user: User, azure: Azure) -> None:
    """Delete the spec in git, a minute ago: `reap` compares whole seconds."""
    commit(user, "rm -q gpu.yaml", "commit -qm none")
    azure.control("POST", "clock", {"advance": 60})


def commit(user: User, *lines: str) -> None:
    words = ["git", "-c", "user.name=u", "-c", "user.email=u@example.com"]
    for line in lines:
        subprocess.run([*words, *line.split()], cwd=user.workspace, env=inherited(), check=True, timeout=30)


REAP = ("reap", "--specs", ".", "--delete", "--grace", "0m")


def test_reap_does_not_delete_outputs_of_another_workspace(user: User, azure: Azure) -> None:
    commit_spec(user)
    run_unfetched_job(user, azure)
    delete_spec(user, azure)
    forget_runs(user)
    found = run_reap(user, *REAP[1:], code=4)
    assert found["deleted"] == []
    assert [each["name"] for each in found["stopped"]] == ["my-dsvm"]
    assert found["stopped"][0]["notDeleted"] == "outputs on its disk were not fetched"
    assert is_off(azure)
    assert azure.everything() == PARTS

    # It is off now, so its runs are unknown.
    again = run_reap(user, *REAP[1:], code=4)
    assert again["deleted"] == []
    assert again["kept"][0]["notDeleted"] == "nothing confirms that all outputs on its disk were fetched"
    assert [each["name"] for each in user.does(*REAP, "--yes")["deleted"]] == ["my-dsvm"]


@variant
def test_reap_deletes_a_machine_that_answers_that_it_has_no_outputs(user: User, azure: Azure) -> None:
    commit_spec(user)
    user.up()
    delete_spec(user, azure)
    assert [each["name"] for each in user.does(*REAP)["deleted"]] == ["my-dsvm"]
    assert azure.everything() == []
