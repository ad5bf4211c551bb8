"""A run whose client was lost before its job began keeps nothing on: not after `run`, and not when `down` asks."""

import os
import time

import pytest

from gpuinfra.remote.run_folder import HEARTBEAT
from gpuinfra.remote.states import SILENT_SECONDS
from tests.e2e.azure import Azure
from tests.e2e.run_help import guest_home, is_off, project
from tests.e2e.user import User
from tests.variants import variants

RUN = "20261116-080000-abcd"


@pytest.fixture
def silent_for(user: User, azure: Azure, request: pytest.FixtureRequest) -> float:
    """Leave a run of another workspace on the machine as its client left it in the upload, some seconds ago."""
    project(user)
    user.up()
    folder = guest_home(azure) / ".gpuinfra" / "runs" / RUN
    (folder / "outputs").mkdir(parents=True)
    (folder / HEARTBEAT).write_text("{}")
    seconds = float(request.param)
    os.utime(folder / HEARTBEAT, (0, time.time() - seconds))
    return seconds


@pytest.mark.parametrize("silent_for", [SILENT_SECONDS + 60], indirect=True)
@pytest.mark.parametrize("command", variants(["run", "gpu.yaml", "quick.py"], ["down", "my-dsvm"]), ids=["run", "down"])
def test_deserted_run_keeps_no_machine_on(user: User, azure: Azure, silent_for: float, command: list[str]) -> None:
    done = user(*command)
    assert done.returncode == 0, done.stderr
    assert is_off(azure)


@pytest.mark.parametrize("silent_for", [0], indirect=True)
def test_run_in_preparation_holds_up_down(user: User, azure: Azure, silent_for: float) -> None:
    problem = user.fails("down", "my-dsvm", code="needs-consent", exit_code=4)
    assert RUN in problem["note"]
    assert not is_off(azure)
