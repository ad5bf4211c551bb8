"""The first run of the README, step by step on a computer without Docker."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from gpuinfra.sandbox import running
from tests.e2e.azure import Azure
from tests.e2e.run_help import SECONDS
from tests.e2e.user import PROGRAM, User, inherited
from tests.pages import blocks


@pytest.fixture
def user(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[User]:
    """A user without an SSH key, on a computer where no Docker Engine runs."""
    nowhere = f"unix://{tmp_path}/none"
    with mock.patch.dict(os.environ, {"DOCKER_HOST": nowhere}):
        azure = Azure(tmp_path_factory.mktemp("azure") / "sandbox")
    yield User(azure, tmp_path / "user", tmp_path / "project", key=False)
    running.stop(azure.folder)


def test_first_run_of_the_readme_finishes_with_its_outputs(user: User, tmp_path: Path) -> None:
    clone, first = tmp_path / "clone", tmp_path / "first"
    clone.mkdir()
    (clone / ".venv").symlink_to(PROGRAM.parents[1])
    environment = {**inherited(), **user.variables, "DOCKER_HOST": f"unix://{tmp_path}/none"}
    (commands,) = (block for block in blocks("README.md") if (block.section, block.language) == ("First run", "sh"))
    words = ["sh", "-e", "-c", commands.text]
    done = subprocess.run(
        words, cwd=clone, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (first / "results" / "model.txt").read_text() == "trained"
    assert user.azure.machine()["powerState"] == "PowerState/deallocated"
    assert (user.home / ".gpuinfra" / "ssh" / "id_ed25519").exists(), "it had no SSH key before"
    assert "simulated" in done.stderr
