"""README's first run, followed to the letter on a computer without Docker."""

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest

from sandbox.running import process
from tests.e2e.azure import Azure
from tests.e2e.user import User

ROOT = Path(__file__).parents[2]


@pytest.fixture
def user(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[User]:
    """A user in an empty folder, on a computer where no Docker Engine runs."""
    nowhere = f"unix://{tmp_path}/none"
    with mock.patch.dict(os.environ, {"DOCKER_HOST": nowhere}):
        azure = Azure(tmp_path_factory.mktemp("azure") / "sandbox")
    yield User(azure, tmp_path / "user", tmp_path / "project")
    process.stop(azure.folder)


def commands(section: str) -> list[str]:
    """The commands of a section's first block."""
    text = (ROOT / "README.md").read_text("utf-8")
    found = re.search(rf"^## {section}\n.*?^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found, f"no commands in {section}"
    return found[1].splitlines()


def test_the_first_run_ends_with_a_finished_job_and_its_outputs(user: User, tmp_path: Path) -> None:
    variables: dict[str, str] = {"DOCKER_HOST": f"unix://{tmp_path}/none"}
    for line in commands("First run"):
        match shlex.split(line, comments=True):
            case ["export", setting]:
                name, _, value = setting.partition("=")
                variables[name] = value
            case ["gpuinfra", *words]:
                done = user(*words, sandbox=False, **variables)
                assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            case _:
                subprocess.run(["sh", "-c", line], cwd=user.workspace, check=True, timeout=60)
    assert (user.workspace / "results" / "model.txt").read_text() == "trained"
    assert user.azure.machine()["powerState"] == "PowerState/deallocated"
    (run,) = user.does("runs")["runs"]
    assert (run["state"], run["exitCode"], run["simulated"]) == ("completed", 0, True)
