"""Jobs of which something is gone: their container, or the variables that let them see a GPU."""

import json
from pathlib import Path

import pytest

from tests.e2e.jobs import GATES, refused, shown, soon, submitted
from tests.lab import REMOTEDOCKER, Lab

WRITING = """
open("outputs/model", "w").write("weights")
print("written")
raise SystemExit(3)
"""


def test_outputs_of_a_container_that_is_gone_are_still_had(lab: Lab) -> None:
    user = lab.user()
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    run = submitted(user, "-c", REMOTEDOCKER, "--detach", user.script(WRITING))["id"]
    state = lab.home / ".gpuinfra" / "runs" / run / "state.json"
    soon(lambda: state.is_file() and "ended" in json.loads(state.read_text()))
    lab.engine.docker("rm", "--force", f"gpuinfra-{run}")
    assert user("outputs", run).returncode == 0
    found = shown(user, run)
    # Who kept watch on it knows how it ended; only what it printed went with the container.
    assert (found["state"], found["exitCode"], found["outputs"]["complete"]) == ("failed", 3, True)
    assert (user.workspace / ".gpuinfra" / "runs" / run / "outputs" / "model").read_text() == "weights"
    assert not state.exists()


def test_a_container_that_somebody_removes_is_told_to_be_lost(lab: Lab) -> None:
    user = lab.user()
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    run = submitted(user, "-c", REMOTEDOCKER, "--detach", user.script(f"{GATES}\ngate('never')"))["id"]
    lab.engine.docker("rm", "--force", f"gpuinfra-{run}")
    assert user("logs", run, "-f").returncode == 255
    assert shown(user, run)["state"] == "lost"


@pytest.mark.parametrize("value", ["", "-1"])
def test_a_variable_that_hides_the_gpus_is_refused(lab: Lab, value: str) -> None:
    user = lab.user()
    script = user.script("print('ran')")
    found = refused(
        user, "-c", REMOTEDOCKER, "--env", f"CUDA_VISIBLE_DEVICES={value}", script, code="no-gpu", exit_code=2
    )
    assert "CUDA_VISIBLE_DEVICES" in found["note"]


def test_packages_for_the_cpu_are_refused_where_a_gpu_is_asked_for(lab: Lab) -> None:
    user = lab.user()
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    file = Path(user.workspace, "aml_config", "conda_dependencies.yml")
    file.write_text("dependencies:\n- python=3.11\n- pip:\n  - tensorflow-cpu==2.15.0\n")
    refused(user, "-c", REMOTEDOCKER, "--gpus", "all", user.script("pass"), code="cpu-only-package")
