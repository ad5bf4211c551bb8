"""Jobs that lost something: their container, or the variables that let them see a GPU."""

import json
from pathlib import Path

import pytest

from tests.e2e.jobs import GATES, show_run, submit_job, submit_refused, wait_for
from tests.lab import REMOTEDOCKER, Lab

WRITING = """
open("outputs/model", "w").write("weights")
print("written")
raise SystemExit(3)
"""


def test_outputs_of_a_removed_container_are_fetched(lab: Lab) -> None:
    user = lab.user()
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    run = submit_job(user, "-c", REMOTEDOCKER, "--detach", user.script(WRITING))["id"]
    state = lab.home / ".gpuinfra" / "runs" / run / "state.json"
    wait_for(lambda: state.is_file() and "ended" in json.loads(state.read_text()))
    lab.engine.docker("rm", "--force", f"gpuinfra-{run}")
    assert user("outputs", run).returncode == 0
    found = show_run(user, run)
    # The supervisor knows how it ended; only the output is lost with the container.
    assert (found["state"], found["exitCode"], found["outputs"]["complete"]) == ("failed", 3, True)
    assert (user.workspace / ".gpuinfra" / "runs" / run / "outputs" / "model").read_text() == "weights"
    assert not state.exists()


def test_job_is_lost_when_its_container_is_removed(lab: Lab) -> None:
    user = lab.user()
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    run = submit_job(user, "-c", REMOTEDOCKER, "--detach", user.script(f"{GATES}\ngate('never')"))["id"]
    lab.engine.docker("rm", "--force", f"gpuinfra-{run}")
    assert user("logs", run, "-f").returncode == 255
    assert show_run(user, run)["state"] == "lost"


@pytest.mark.parametrize("value", ["", "-1"])
def test_variable_that_hides_the_gpus_is_refused(lab: Lab, value: str) -> None:
    user = lab.user()
    script = user.script("print('ran')")
    found = submit_refused(
        user, "-c", REMOTEDOCKER, "--env", f"CUDA_VISIBLE_DEVICES={value}", script, code="no-gpu", exit_code=2
    )
    assert "CUDA_VISIBLE_DEVICES" in found["note"]


def test_cpu_packages_are_refused_for_gpu_jobs(lab: Lab) -> None:
    user = lab.user()
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    file = Path(user.workspace, "aml_config", "conda_dependencies.yml")
    file.write_text("dependencies:\n- python=3.11\n- pip:\n  - tensorflow-cpu==2.15.0\n")
    submit_refused(user, "-c", REMOTEDOCKER, "--gpus", "all", user.script("pass"), code="cpu-only-package")
