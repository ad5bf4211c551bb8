"""A variable that hides every GPU from CUDA: a job that requests a GPU does not start."""

import pytest

from tests.e2e.jobs import shared_folder, show_run, submit_refused
from tests.e2e.test_jobs_gpu import MARKING, has_run
from tests.images import python_archive
from tests.lab import IMAGE_PATH, LOCAL, REMOTE, REMOTEDOCKER, Lab
from tests.variants import variants

VARIABLE = "CUDA_VISIBLE_DEVICES"
HIDDEN = "hidden:latest"


@pytest.mark.parametrize("value", variants("99", "99,0", "GPU-12345678-0000-4000-8000-000000000000"))
def test_run_configuration_that_hides_the_gpus_is_refused(lab: Lab, value: str) -> None:
    user = lab.user()
    user.configure(REMOTEDOCKER, EnvironmentVariables={VARIABLE: value})
    found = submit_refused(user, "-c", REMOTEDOCKER, user.script(MARKING), code="no-gpu")
    assert f"`{VARIABLE}={value}`" in found["note"]
    assert f"`{REMOTEDOCKER}.runconfig`" in found["note"]
    assert not has_run(user, REMOTEDOCKER)


@pytest.mark.parametrize("value", ["", "-1"])
def test_file_that_hides_the_gpus_is_named(lab: Lab, value: str) -> None:
    user = lab.user()
    user.configure(REMOTEDOCKER, EnvironmentVariables={VARIABLE: value})
    found = submit_refused(user, "-c", REMOTEDOCKER, user.script(MARKING), code="no-gpu", exit_code=2)
    assert f"`{REMOTEDOCKER}.runconfig`" in found["note"]


def test_option_that_hides_the_gpus_is_refused(lab: Lab) -> None:
    user = lab.user()
    words = ("--gpus", "all", "--env", f"{VARIABLE}=2")
    found = submit_refused(user, "-c", REMOTE, *words, user.script(MARKING), code="no-gpu")
    assert "`--env`" in found["note"]
    assert not has_run(user, REMOTE)


@pytest.mark.parametrize("value", ["99", "", "-1"])
def test_shell_variable_that_hides_the_gpus_is_refused(lab: Lab, value: str) -> None:
    user = lab.user()
    found = submit_refused(
        user, "-c", LOCAL, "--gpus", "all", user.script(MARKING), code="no-gpu", CUDA_VISIBLE_DEVICES=value
    )
    assert f"`{VARIABLE}={value}`" in found["note"]
    assert "this computer" in found["note"]
    assert not has_run(user, LOCAL)


def test_image_that_hides_the_gpus_is_refused(lab: Lab) -> None:
    user = lab.user()
    lab.engine.add_image(HIDDEN, python_archive(), f"{IMAGE_PATH} {VARIABLE}=99")
    user.compute(REMOTEDOCKER, baseDockerImage=HIDDEN)
    found = submit_refused(user, "-c", REMOTEDOCKER, user.script(MARKING), code="no-gpu")
    assert HIDDEN in found["note"]
    assert not has_run(user, REMOTEDOCKER)


def test_variable_that_selects_a_gpu_is_kept(lab: Lab) -> None:
    user = lab.user()
    script = user.script(f"import os; print(os.environ['{VARIABLE}'])")
    done = user("submit", "-c", REMOTE, "--gpus", "all", "--env", f"{VARIABLE}=1", script)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_optional_gpu_job_is_recorded_without_a_gpu(lab: Lab) -> None:
    user = lab.user()
    file = user.workspace / "aml_config" / f"{LOCAL}.compute"
    file.write_text("".join(line for line in file.read_text().splitlines(True) if "nvidiaDocker" not in line))
    done = user("submit", "-c", LOCAL, user.script(MARKING), **{VARIABLE: "99"})
    assert done.returncode == 0, done.stderr
    assert show_run(user)["gpu"] is None
    assert shared_folder(user, LOCAL).is_dir()
