"""Jobs for containers where Docker does not work: the cause is named at once, before anything is created or sent."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from gpuinfra.sandbox import running
from tests.e2e.azure import Azure, reset
from tests.e2e.run_help import guest_home
from tests.e2e.user import User
from tests.fake_engine import fake_engine
from tests.variants import variant

QUICK = "print('done')\nopen('outputs/result.txt', 'w').write('result')\n"


@pytest.fixture(scope="module")
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of an engine that does not run."""
    return f"unix://{tmp_path_factory.mktemp('d') / 'none'}"


@pytest.fixture(scope="module")
def azure_without_engine(tmp_path_factory: pytest.TempPathFactory, nowhere: str) -> Iterator[Azure]:
    """An embedded Azure on a computer where no Docker Engine runs."""
    with mock.patch.dict(os.environ, {"DOCKER_HOST": nowhere}):
        azure = Azure(tmp_path_factory.mktemp("azure") / "sandbox")
    yield azure
    running.stop(azure.folder)


@pytest.fixture
def user(azure_without_engine: Azure, tmp_path: Path) -> User:
    reset(azure_without_engine)
    user = User(azure_without_engine, tmp_path / "user", tmp_path / "project")
    user.spec()
    (user.workspace / "train.py").write_text(QUICK)
    return user


def diagnostic(done: "subprocess.CompletedProcess[str]") -> dict[str, str]:
    assert done.returncode == 1, done.stdout + done.stderr
    (found,) = json.loads(done.stdout)["diagnostics"]
    return dict(found)


@variant
def test_submit_names_a_docker_engine_that_does_not_run(user: User) -> None:
    user.up()
    done = user("submit", "--json", "-c", "my_dsvm", "train.py")
    found = diagnostic(done)
    assert found["code"] == "no-engine"
    assert "no such file or directory" in found["note"]
    assert "sudo systemctl enable --now docker" in found["help"]
    assert "upload" not in done.stderr
    assert not list(guest_home(user.azure).rglob("train.py"))


def test_up_warns_that_container_jobs_cannot_run(user: User) -> None:
    done = user("up", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert "no Docker Engine on this computer" in done.stderr
    assert "`type: remote`" in done.stderr


def test_run_on_the_embedded_azure_without_docker_creates_nothing(user: User, nowhere: str) -> None:
    found = diagnostic(user("run", "--json", "gpu.yaml", "train.py", DOCKER_HOST=nowhere))
    assert found["code"] == "no-engine"
    assert "nothing was created" in found["note"]
    assert "sudo systemctl enable --now docker" in found["help"]
    assert "`type: remote`" in found["help"]
    assert user.azure.everything() == []


def test_run_checks_the_engine_of_the_sandbox_rather_than_of_the_shell(user: User, tmp_path: Path) -> None:
    with fake_engine(tmp_path / "s") as address:
        found = diagnostic(user("run", "--json", "gpu.yaml", "train.py", DOCKER_HOST=address))
    assert found["code"] == "no-engine"
    assert "nothing was created" in found["note"]
    assert "`gpuinfra sandbox stop`" in found["help"]
    assert user.azure.everything() == []
