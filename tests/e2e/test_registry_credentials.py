"""The caller's Docker credentials are sent to the user's own machines, and not to machines that a project names."""

import base64
import json
from collections.abc import Iterator

import pytest

from tests.integration.runner import registry
from tests.lab import REMOTEDOCKER, Lab, LabUser
from tests.registries import serving


@pytest.fixture(scope="module")
def private(running_lab: Lab) -> Iterator[str]:
    """The address of a registry that requires a login."""
    with serving(running_lab, "private") as address:
        yield address


@pytest.fixture
def user(lab: Lab, private: str) -> LabUser:
    """A user who is logged in to the registry, in a project whose target uses an image from there."""
    made = lab.user()
    made.compute(REMOTEDOCKER, baseDockerImage=f"{private}/{registry.TOOL}", nvidiaDocker=False)
    login = base64.b64encode(f"{registry.USER}:{registry.PASSWORD}".encode()).decode()
    (made.home / ".docker").mkdir()
    (made.home / ".docker" / "config.json").write_text(json.dumps({"auths": {private: {"auth": login}}}))
    return made


def test_target_of_a_project_gets_no_credentials_without_the_option(user: LabUser, private: str) -> None:
    done = user("prepare", "-c", REMOTEDOCKER)
    assert done.returncode == 1, done.stdout + done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "--send-credentials" in line]
    assert private in line
    assert "gpuinfra attach" in line
    assert registry.PASSWORD not in done.stderr
    user.does("prepare", "-c", REMOTEDOCKER, "--send-credentials")


def test_job_on_a_target_of_a_project_gets_no_credentials_without_the_option(user: LabUser) -> None:
    user.script("print(1)")
    done = user("submit", "-c", REMOTEDOCKER, "train.py")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "--send-credentials" in done.stderr
    done = user("submit", "--send-credentials", "-c", REMOTEDOCKER, "train.py")
    assert "registry" not in done.stderr  # the image has no Python, so the job itself fails


def test_attached_machine_gets_the_credentials(user: LabUser, lab: Lab) -> None:
    target = lab.target
    address = ["--address", target.address, "--port", str(target.port), "--username", target.username]
    user.does("attach", REMOTEDOCKER, *address, "--host-key", target.host_key, "--no-gpu", "--yes")
    user.does("prepare", "-c", REMOTEDOCKER, "--sandbox")  # the lab's machine is marked as simulated


def test_machine_known_only_to_ssh_gets_no_credentials(user: LabUser) -> None:
    user.does("ssh", REMOTEDOCKER)
    done = user("prepare", "-c", REMOTEDOCKER)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "--send-credentials" in done.stderr
