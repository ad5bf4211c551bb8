"""A workspace without the spec of its machine: its runs are still known and counted, and keep their lease."""

import re
from datetime import timedelta
from pathlib import Path

import pytest

from tests.e2e.azure import Azure
from tests.e2e.impatient import start_impatient
from tests.e2e.jobs import expect_line, wait_for
from tests.e2e.repository import commit_all
from tests.e2e.run_help import guest_home, project, runs_of, state_of_job
from tests.e2e.test_jobs_renewed import LEASE, TALKS, left
from tests.e2e.user import User
from tests.variants import variant, variants

SPEC = "../specs/gpu.yaml"


@pytest.fixture
def user(user: User) -> User:
    """A running machine whose spec is outside the workspace."""
    project(user, idle="5h")  # longer than a test advances the clock: the agent must not act first
    (user.workspace / "talks.py").write_text(TALKS)
    (user.workspace.parent / "specs").mkdir()
    (user.workspace / "gpu.yaml").rename(user.workspace / SPEC)
    user.does("up", SPEC)
    return user


def submitted(user: User) -> str:
    done = user("submit", "-c", "my_dsvm", "--detach", "waits.py")
    assert done.returncode == 0, done.stderr
    (run,) = runs_of(user)
    return str(run["id"])


def forget_machine(user: User) -> None:
    """Write the target's file as an older gpuinfra did, without the machine's name."""
    file = user.workspace / "aml_config" / "my_dsvm.compute"
    file.write_text(re.sub(r"(?m)^resourceId:.*\n", "", file.read_text()))


@pytest.mark.parametrize("is_older", variants(True, False), ids=["older-file", "today"])
@pytest.mark.parametrize("words", variants(["down", SPEC], ["down", SPEC, "--delete"]), ids=["off", "delete"])
def test_down_without_a_terminal_does_not_stop_a_job(
    user: User, azure: Azure, words: list[str], is_older: bool
) -> None:
    if is_older:
        forget_machine(user)
    run = submitted(user)
    problem = user.fails(*words, code="needs-consent", exit_code=4)
    assert f"{run} (waits.py, running" in problem["note"]
    assert "ended" not in (state_of_job(azure, run) or {})


@pytest.mark.parametrize("is_older", variants(True, False), ids=["older-file", "today"])
def test_reap_does_not_delete_outputs_that_were_not_fetched(user: User, azure: Azure, is_older: bool) -> None:
    specs = user.workspace.parent / "specs"
    commit_all(user, "Add the spec", specs)
    user.does("up", SPEC)
    if is_older:
        forget_machine(user)
    run = submitted(user)
    (guest_home(azure) / "go").touch()
    wait_for(lambda: "ended" in (state_of_job(azure, run) or {}), "the end of the job")
    # Commits, machines and `reap` have times in whole seconds.
    azure.control("POST", "clock", {"advance": 60})
    (specs / "gpu.yaml").unlink()
    commit_all(user, "Delete the spec", specs)
    azure.control("POST", "clock", {"advance": 60})
    words = ["reap", "--specs", str(specs), "--delete", "--grace", "0m"]
    user(*words)
    assert "disks/my-dsvm-disk" in azure.everything()
    user(*words, "--yes")
    assert azure.everything() == []


@variant
def test_runs_of_a_deleted_machine_are_finished(user: User, azure: Azure) -> None:
    submitted(user)
    assert runs_of(user)[0]["machine"] == "my-dsvm"
    user.down(SPEC, "--delete", "--yes")
    (run,) = user.does("runs")["runs"]
    assert (run["state"], run["reason"]) == ("lost", "my-dsvm was deleted")


@variant
def test_lease_is_renewed_for_a_job_that_works(user: User, azure: Azure) -> None:
    azure.control("POST", "clock", {"advance": 70 * 60})
    with start_impatient(user, "submit", "-c", "my_dsvm", "talks.py") as client:
        expect_line(client, "at work\n")
        wait_for(lambda: left(azure) > LEASE - timedelta(minutes=5), "a lease that was renewed")
    user.does("cancel", "last", "--grace", "0s")


@variant
def test_detached_job_extends_the_lease_to_its_timeout(user: User, azure: Azure) -> None:
    done = user("submit", "-c", "my_dsvm", "--detach", "--timeout", "5h", "waits.py")
    assert done.returncode == 0, done.stderr
    assert left(azure) > timedelta(hours=5)


def test_file_of_another_machine_does_not_renew_a_lease(user: User, azure: Azure, tmp_path: Path) -> None:
    """A project can come from other users: its target may name your machine and point to theirs."""
    file = user.workspace / "aml_config" / "my_dsvm.compute"
    user.spec(name="other", file=SPEC, target={"type": "remote"}, lifecycle={"lease": "2h"})
    user.does("up", SPEC)
    lied = re.search(r"(?m)^resourceId:.*\n", file.read_text())
    assert lied is not None
    there = user.workspace / "aml_config" / "other.compute"
    there.write_text(re.sub(r"(?m)^resourceId:.*\n", lied.group(), there.read_text()))
    user("submit", "-c", "other", "--detach", "--timeout", "5h", "waits.py")
    assert left(azure) < timedelta(hours=3)
