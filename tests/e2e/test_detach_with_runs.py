"""`detach` names the runs that cannot be reached without the target."""

import json

import pytest

from tests.e2e.azure import Azure
from tests.e2e.run_help import project, runs_of, state_of_job
from tests.e2e.user import User
from tests.sshd import eventually


@pytest.fixture
def user(user: User) -> User:
    project(user)
    user.up()
    return user


def test_detach_names_running_jobs_and_unfetched_outputs(user: User, azure: Azure) -> None:
    for script in ("quick.py", "waits.py"):
        assert user("submit", "-c", "my_dsvm", "--detach", script).returncode == 0
    running, ended = (run["id"] for run in runs_of(user))
    assert eventually(lambda: "ended" in (state_of_job(azure, ended) or {}), 60)
    refused = user.fails("detach", "my_dsvm", code="needs-consent", exit_code=2)
    words = f"{running} (running), {ended} (completed, outputs not fetched)"
    assert f"not reachable without the target: {words}" in refused["note"]
    assert f"`gpuinfra outputs {ended}`" in refused["help"]
    assert (user.workspace / "aml_config" / "my_dsvm.compute").exists()

    done = user("detach", "my_dsvm", "--yes", "--json")
    assert json.loads(done.stdout)["runs"] == [running, ended]


def test_detach_of_a_target_without_runs_names_none(user: User) -> None:
    assert "runs" not in user.does("detach", "my_dsvm", "--yes")
