"""Jobs whose files name no image: the machine's driver decides."""

from collections.abc import Iterator

import pytest

from gpuinfra.workbench.base_images import WITHOUT_CUDA, choose_base_image
from tests.e2e import jobs
from tests.lab import PYTHON, REMOTEDOCKER, Lab, LabUser
from tests.nvidia import CUDA, DRIVER, NO_DRIVER

FOR_DRIVER, FOR_UNKNOWN = choose_base_image(DRIVER, CUDA), choose_base_image(None)


@pytest.fixture
def user(lab: Lab) -> Iterator[LabUser]:
    """A user whose targets name no image, on a machine that has the images, so that nothing is pulled."""
    names = (FOR_DRIVER.name, FOR_UNKNOWN.name, WITHOUT_CUDA)
    for name in names:
        lab.engine.docker("tag", PYTHON, name)
    made = lab.user()
    made.compute(REMOTEDOCKER, baseDockerImage=None)
    yield made
    lab.engine.docker("rmi", *names)


def test_job_uses_the_image_for_the_driver_and_says_why(user: LabUser) -> None:
    done = user("submit", "-c", REMOTEDOCKER, user.script("print('ran')"))
    assert (done.returncode, done.stdout) == (0, "ran\n"), done.stderr
    lines = [line for line in done.stderr.splitlines() if "image: " in line]
    assert len(lines) == 1, done.stderr
    assert lines[0].endswith(f"image: {FOR_DRIVER.name} ({FOR_DRIVER.reason})")
    assert jobs.show_run(user)["image"] == FOR_DRIVER.name


def test_job_without_a_gpu_uses_an_image_without_cuda(user: LabUser) -> None:
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    done = user("submit", "-c", REMOTEDOCKER, user.script("print('ran')"))
    assert (done.returncode, "image: " in done.stderr) == (0, False), done.stderr
    assert jobs.show_run(user)["image"] == WITHOUT_CUDA


def test_gpu_check_reports_a_missing_driver(user: LabUser, lab: Lab) -> None:
    with lab.nvidia.failing(NO_DRIVER):
        found = jobs.submit_refused(user, "-c", REMOTEDOCKER, user.script("print('ran')"), code="no-gpu")
    assert "driver is not loaded" in found["note"]
    assert jobs.last_run(user)["image"] == FOR_UNKNOWN.name
