"""A target that now points to another machine: runs on the previous machine are neither lost nor stopped silently."""

import pytest

from tests.e2e.azure import Azure
from tests.e2e.run_help import project, runs_of
from tests.e2e.user import User
from tests.variants import variant

ON = "PowerState/running"


@pytest.fixture
def renamed(user: User) -> User:
    """A job runs on my-dsvm, and the spec describes the machine `other` with the same target name."""
    project(user)
    user.up()
    done = user("submit", "-c", "my_dsvm", "--detach", "waits.py")
    assert done.returncode == 0, done.stderr
    user.spec(name="other", target={"type": "remote", "name": "my_dsvm"}, lifecycle={"lease": "2h"})
    return user


def test_up_without_consent_does_not_point_a_target_to_another_machine(renamed: User, azure: Azure) -> None:
    file = renamed.workspace / "aml_config" / "my_dsvm.compute"
    before, number = file.read_bytes(), azure.last_request()
    problem = renamed.fails("up", "gpu.yaml", code="needs-consent", exit_code=2)
    assert "`my-dsvm`" in problem["note"]
    assert file.read_bytes() == before
    assert azure.writes(number) == []


@variant
def test_up_needs_no_consent_if_the_machine_before_is_gone(renamed: User, azure: Azure) -> None:
    renamed.down("my-dsvm", "--delete", "--yes")
    assert renamed.up()["target"]["machine"] == "other"


def test_runs_of_the_machine_before_are_not_lost(renamed: User, azure: Azure) -> None:
    renamed.up("--yes")
    (run,) = renamed.does("runs")["runs"]
    assert run["state"] == "running"
    cancelled = renamed("cancel", run["id"])
    assert cancelled.returncode == 1, cancelled.stdout + cancelled.stderr
    assert "my-dsvm" in cancelled.stderr
    assert runs_of(renamed)[0]["state"] == "running"
    problem = renamed.fails("down", "my-dsvm", code="needs-consent", exit_code=4)
    assert run["id"] in problem["note"]
    assert azure.machine()["powerState"] == ON


def test_down_and_up_report_a_machine_whose_spec_was_renamed(user: User, azure: Azure) -> None:
    user.up()
    line = "my-dsvm was switched on from this workspace and is still on: `gpuinfra down my-dsvm --sandbox`"
    assert line not in user("up", "gpu.yaml").stderr
    user.spec(name="other")
    done = user("down", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert line in done.stderr
    assert line in user("up", "gpu.yaml").stderr
    assert user("down", "my-dsvm").returncode == 0
    assert line not in user("down", "gpu.yaml").stderr
