"""Docker on machines whose jobs run in containers: `up` gives their user access to it."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from gpuinfra.sandbox import running
from tests.e2e.azure import Azure, reset
from tests.e2e.run_help import guest_root
from tests.e2e.user import User
from tests.fake_engine import VERSION, fake_engine


@pytest.fixture(scope="module")
def azure_with_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azure]:
    """An embedded Azure on a computer that has a Docker Engine."""
    folder = tmp_path_factory.mktemp("e")
    with fake_engine(folder / "s") as address:
        with mock.patch.dict(os.environ, {"DOCKER_HOST": address}):
            azure = Azure(folder / "sandbox")
        yield azure
        running.stop(azure.folder)


@pytest.fixture
def docker_user(azure_with_engine: Azure, tmp_path: Path) -> User:
    reset(azure_with_engine)
    user = User(azure_with_engine, tmp_path / "user", tmp_path / "project")
    user.spec()
    return user


def test_up_lets_the_admin_user_use_docker(docker_user: User) -> None:
    done = docker_user("up", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert f"Docker Engine {VERSION}" in done.stderr
    asked = docker_user("ssh", "my-dsvm", "--", "docker", "version", "--format", "{{.Server.Version}}")
    assert (asked.returncode, asked.stdout.strip()) == (0, VERSION), asked.stderr


def test_up_fails_where_the_user_may_not_use_docker(docker_user: User) -> None:
    docker_user.up()
    group = guest_root(docker_user.azure) / "etc" / "group"
    group.write_text(group.read_text().replace("azureuser", ""))
    problem = docker_user.fails("up", "gpu.yaml", code="not-ready")
    assert "permission denied" in problem["note"]
    assert "it was on before, and was left on" in problem["note"]
    assert "sudo usermod -aG docker azureuser" in problem["help"]


def test_up_does_not_ask_for_docker_where_jobs_run_without(docker_user: User) -> None:
    docker_user.spec(target={"type": "remote"})
    done = docker_user("up", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert "docker" not in done.stderr.casefold()


def test_submit_reports_missing_docker_permission(docker_user: User) -> None:
    docker_user.up()
    group = guest_root(docker_user.azure) / "etc" / "group"
    group.write_text(group.read_text().replace("azureuser", ""))
    (docker_user.workspace / "train.py").write_text("print('done')")
    done = docker_user("submit", "--json", "-c", "my_dsvm", "train.py")
    assert done.returncode == 1, done.stdout + done.stderr
    (problem,) = json.loads(done.stdout)["diagnostics"]
    assert problem["code"] == "no-engine"
    assert "permission denied" in problem["note"]
    assert "sudo usermod -aG docker" in problem["help"]
