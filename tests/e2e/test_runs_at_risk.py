"""`up` and `down` ask before they stop a run or lose outputs; without a terminal they need an option."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.e2e.azure import Azure
from tests.e2e.jobs import Terminal, on_terminal
from tests.e2e.run_help import guest_home, is_off, project, runs_of, state_of_job
from tests.e2e.user import LARGER_SIZE, OTHER_REGION, PARTS, User, inherited
from tests.lab import LabUser
from tests.sshd import eventually

RESIZE: dict[str, Any] = {"size": LARGER_SIZE}
MOVE: dict[str, Any] = {"region": OTHER_REGION}
OFF: dict[str, Any] = {"power": "deallocated"}


@pytest.fixture
def user(user: User) -> User:
    """Has a project with scripts."""
    project(user)
    return user


def running(user: User) -> str:
    """A job that runs on `my-dsvm` until the test ends it; its id."""
    user.up()
    done = user("submit", "-c", "my_dsvm", "--detach", "waits.py")
    assert done.returncode == 0, done.stderr
    (run,) = runs_of(user)
    return str(run["id"])


def ended(user: User, azure: Azure) -> str:
    """A job that has ended, with outputs that nobody has fetched; its id."""
    run = running(user)
    (guest_home(azure) / "go").touch()
    assert eventually(lambda: "ended" in (state_of_job(azure, run) or {}), 60)
    return run


def goes_on(azure: Azure, run: str) -> bool:
    state = state_of_job(azure, run)
    return state is not None and "ended" not in state


def changed(user: User, **fields: Any) -> None:
    """The usual spec for jobs, with other fields."""
    user.spec(target={"type": "remote"}, lifecycle={"lease": "2h"}, **fields)


def stranger(user: User, tmp_path: Path) -> User:
    """Somebody with the same key and spec, in a workspace that knows of no runs."""
    other = User.__new__(User)
    other.azure, other.home, other.workspace = user.azure, user.home, tmp_path / "elsewhere"
    other.workspace.mkdir()
    project(other)
    return other


@contextmanager
def asked(user: User, *words: str) -> Iterator[Terminal]:
    """The program on a terminal, at its question."""
    with on_terminal(cast("LabUser", user), *words, "--sandbox") as terminal:
        terminal.waits_for(b"Go on?")
        yield terminal


# A change that stops a job


@pytest.mark.parametrize("change", [RESIZE, OFF], ids=["resize", "power-off"])
def test_up_without_a_terminal_does_not_stop_a_running_job(user: User, azure: Azure, change: dict[str, Any]) -> None:
    run = running(user)
    changed(user, **change)
    before = azure.last_request()
    refused = user.fails("up", "gpu.yaml", code="needs-consent", exit_code=2)
    assert run in refused["note"]
    assert "waits.py" in refused["note"]
    assert "--yes" in refused["help"]
    assert azure.writes(before) == []
    assert goes_on(azure, run)


def test_up_with_yes_restarts_a_machine_with_a_running_job(user: User, azure: Azure) -> None:
    running(user)
    changed(user, **RESIZE)
    user.up("--yes")
    assert azure.machine()["properties"]["hardwareProfile"]["vmSize"] == LARGER_SIZE


def test_up_on_a_terminal_lists_the_runs_that_a_resize_stops(user: User, azure: Azure) -> None:
    run = running(user)
    changed(user, **RESIZE)
    before = azure.last_request()
    with asked(user, "up", "gpu.yaml") as terminal:
        screen = terminal.seen.decode()
        assert run in screen
        assert "waits.py" in screen
        assert "running" in screen
        terminal.types(b"n\n")
        assert terminal.ends() == 2
    assert azure.writes(before) == []
    assert goes_on(azure, run)


def test_up_counts_runs_of_other_workspaces(user: User, azure: Azure, tmp_path: Path) -> None:
    run = running(user)
    other = stranger(user, tmp_path)
    changed(other, **RESIZE)
    before = azure.last_request()
    assert run in other.fails("up", "gpu.yaml", code="needs-consent", exit_code=2)["note"]
    assert azure.writes(before) == []


def test_up_resizes_without_a_question_when_no_job_runs(user: User, azure: Azure) -> None:
    ended(user, azure)
    changed(user, **RESIZE)
    user.up()
    assert azure.machine()["properties"]["hardwareProfile"]["vmSize"] == LARGER_SIZE


def test_down_without_a_terminal_does_not_stop_a_running_job(user: User, azure: Azure, tmp_path: Path) -> None:
    run = running(user)
    for somebody in (user, stranger(user, tmp_path)):
        refused = somebody.fails("down", "my-dsvm", code="needs-consent", exit_code=4)
        assert run in refused["note"]
        assert "billed" in refused["note"]
        assert "gpuinfra down my-dsvm --yes --sandbox" in refused["help"]
        assert goes_on(azure, run)
    azure.control("POST", "clock", {"advance": 3 * 3600})
    assert is_off(azure), "the lease ends it all the same"


def test_down_with_yes_stops_a_running_job_and_keeps_its_outputs(user: User, azure: Azure) -> None:
    running(user)
    assert user.down("my-dsvm", "--yes")["off"] is True
    assert is_off(azure)
    assert azure.everything() == PARTS


def test_down_on_a_terminal_asks_before_it_stops_a_running_job(user: User, azure: Azure) -> None:
    run = running(user)
    with asked(user, "down", "my-dsvm") as terminal:
        assert run in terminal.seen.decode()
        terminal.types(b"n\n")
        assert terminal.ends() == 4
    assert goes_on(azure, run)
    with asked(user, "down", "my-dsvm") as terminal:
        terminal.types(b"y\n")
        assert terminal.ends() == 0
    assert is_off(azure)


def test_down_goes_on_when_the_machine_cannot_be_asked(user: User, azure: Azure, tmp_path: Path) -> None:
    """Nothing is lost by it, and a machine that lets nobody in must not stay billed."""
    running(user)
    other = User(azure, tmp_path / "other", tmp_path / "elsewhere", key=False)
    done = other("down", "my-dsvm")
    assert done.returncode == 0, done.stderr
    assert "cannot be asked for its runs" in done.stderr
    assert is_off(azure)


# A change that loses outputs


@pytest.mark.parametrize("words", [[], ["--yes"]], ids=["plain", "yes"])
def test_up_does_not_replace_a_machine_with_a_running_job(user: User, azure: Azure, words: list[str]) -> None:
    run = running(user)
    changed(user, **MOVE)
    before = azure.last_request()
    refused = user.fails("up", "gpu.yaml", *words, code="needs-consent", exit_code=2)
    assert run in refused["note"]
    assert "--delete --yes" in refused["help"]
    assert azure.writes(before) == []
    assert goes_on(azure, run)


def test_up_does_not_replace_a_machine_with_unfetched_outputs(user: User, azure: Azure, tmp_path: Path) -> None:
    run = ended(user, azure)
    for somebody in (user, stranger(user, tmp_path)):
        changed(somebody, **MOVE)
        before = azure.last_request()
        assert run in somebody.fails("up", "gpu.yaml", "--yes", code="needs-consent", exit_code=2)["note"]
        assert azure.writes(before) == []


def test_up_on_a_terminal_lists_the_outputs_that_a_replacement_loses(user: User, azure: Azure) -> None:
    run = ended(user, azure)
    changed(user, **MOVE)
    before = azure.last_request()
    with asked(user, "up", "gpu.yaml", "--yes") as terminal:
        screen = terminal.seen.decode()
        assert run in screen
        assert "not fetched" in screen
        assert "forces replacement" in screen
        terminal.types(b"n\n")
        assert terminal.ends() == 2
    assert azure.writes(before) == []


def test_up_replaces_with_delete_and_yes(user: User, azure: Azure) -> None:
    ended(user, azure)
    changed(user, **MOVE)
    user.up("--delete", "--yes")
    assert azure.machine()["location"] == OTHER_REGION


def test_disk_of_a_machine_that_is_off_may_hold_outputs(user: User, azure: Azure, tmp_path: Path) -> None:
    ended(user, azure)
    user.down("my-dsvm")
    other = stranger(user, tmp_path)
    changed(other, **MOVE)
    before = azure.last_request()
    for words, code in ((["up", "gpu.yaml", "--yes"], 2), (["down", "my-dsvm", "--delete"], 2)):
        refused = other.fails(*words, code="needs-consent", exit_code=code)
        assert "may hold outputs" in refused["note"]
        assert "--delete --yes" in refused["help"]
        assert azure.writes(before) == []
    assert other.down("my-dsvm", "--delete", "--yes")["verifiedBy"] == "404"


# Deleting


def test_down_delete_on_a_terminal_lists_what_is_lost(user: User, azure: Azure) -> None:
    run = ended(user, azure)
    before = azure.last_request()
    with asked(user, "down", "my-dsvm", "--delete") as terminal:
        screen = terminal.seen.decode()
        for word in (run, "waits.py", "not fetched", "shared folder", "disk"):
            assert word in screen
        terminal.types(b"n\n")
        assert terminal.ends() == 4, "it is on, and billed"
    assert azure.writes(before) == []


def test_down_delete_on_a_terminal_asks_when_nothing_is_known_to_be_lost(user: User, azure: Azure) -> None:
    user.up()
    with asked(user, "down", "my-dsvm", "--delete") as terminal:
        assert "shared folder" in terminal.seen.decode()
        terminal.types(b"y\n")
        assert terminal.ends() == 0
    assert azure.everything() == []


def test_down_delete_with_yes_asks_nothing_on_a_terminal(user: User, azure: Azure) -> None:
    ended(user, azure)
    with on_terminal(cast("LabUser", user), "down", "my-dsvm", "--delete", "--yes", "--sandbox") as terminal:
        assert terminal.ends() == 0
        assert b"Go on?" not in terminal.seen
    assert azure.everything() == []


def test_interrupted_question_changes_nothing(user: User, azure: Azure) -> None:
    run = running(user)
    with asked(user, "down", "my-dsvm") as terminal:
        terminal.types_until(bytes([signal.SIGINT + 1]), b"interrupted")
        assert terminal.ends() == 130
    assert goes_on(azure, run)


# What is not affected


def test_run_ends_its_own_machine_without_a_question(user: User, azure: Azure) -> None:
    done = user("run", "gpu.yaml", "quick.py")
    assert done.returncode == 0, done.stderr
    assert is_off(azure)


# Reaping


def commit_spec(user: User) -> None:
    """The spec is in git."""
    commit(user, "init -q", "add gpu.yaml", "commit -qm one")


def spec_gone(user: User, azure: Azure) -> None:
    """The spec was deleted in git, a minute ago: `reap` compares whole seconds."""
    commit(user, "rm -q gpu.yaml", "commit -qm none")
    azure.control("POST", "clock", {"advance": 60})


def commit(user: User, *lines: str) -> None:
    words = ["git", "-c", "user.name=u", "-c", "user.email=u@example.com"]
    for line in lines:
        subprocess.run([*words, *line.split()], cwd=user.workspace, env=inherited(), check=True, timeout=30)


REAP = ("reap", "--specs", ".", "--delete", "--grace", "0m")


def test_reap_does_not_delete_outputs_of_another_workspace(user: User, azure: Azure) -> None:
    commit_spec(user)
    ended(user, azure)
    spec_gone(user, azure)
    (user.workspace / ".gpuinfra" / "runs.db").unlink()
    found = user.does(*REAP)
    assert found["deleted"] == []
    assert [each["name"] for each in found["stopped"]] == ["my-dsvm"]
    assert "outputs on its disk were not fetched" in found["stopped"][0]["cause"]
    assert is_off(azure)
    assert azure.everything() == PARTS

    # It is off now, and nobody can ask it.
    again = user.does(*REAP)
    assert again["deleted"] == []
    assert "may hold outputs" in again["kept"][0]["cause"]
    assert [each["name"] for each in user.does(*REAP, "--yes")["deleted"]] == ["my-dsvm"]


def test_reap_deletes_a_machine_that_answers_that_it_has_no_outputs(user: User, azure: Azure) -> None:
    commit_spec(user)
    user.up()
    spec_gone(user, azure)
    assert [each["name"] for each in user.does(*REAP)["deleted"]] == ["my-dsvm"]
    assert azure.everything() == []
