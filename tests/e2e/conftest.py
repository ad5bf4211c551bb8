"""The installed program, run as a user would; and an embedded Azure for what the user does with it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandbox.running import process
from tests.az import Az
from tests.e2e.azure import Azure
from tests.e2e.run_help import Start, clients
from tests.e2e.user import PROGRAM, Run, User, run_program
from tests.lab import fresh_lab, lab

__all__ = ["PROGRAM", "Run", "fresh_lab", "lab"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run `gpuinfra` in an empty folder, with nothing of this shell's own settings."""

    def run(*arguments: str, stdin: str = "", **variables: Any) -> subprocess.CompletedProcess[str]:
        return run_program(*arguments, folder=tmp_path, stdin=stdin, **variables)

    return run


@pytest.fixture(scope="module")
def running_azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azure]:
    """One embedded Azure for all tests of a module."""
    folder = tmp_path_factory.mktemp("azure") / "sandbox"
    yield Azure(folder)
    process.stop(folder)


@pytest.fixture
def azure(running_azure: Azure) -> Azure:
    """It, with nothing in it."""
    running_azure.control("POST", "reset")
    return running_azure


@pytest.fixture
def user(azure: Azure, tmp_path: Path) -> User:
    """Somebody whose `gpu.yaml` asks for `my-dsvm`."""
    somebody = User(azure, tmp_path / "user", tmp_path / "project")
    somebody.spec()
    return somebody


@pytest.fixture
def start(user: User) -> Iterator[Start]:
    """Starts the program as that user, as a process that can be killed."""
    with clients(user) as start:
        yield start


@pytest.fixture
def az(azure: Azure, tmp_path: Path) -> Az:
    """`az` with a fresh login: an older one the sandbox's clock may have left behind."""
    described, credentials = azure.description, azure.control("GET", "credentials")
    made = Az(tmp_path / "az", endpoint=described.endpoint, authority_file=described.ca)
    made.login(tenant=credentials["tenant"], client=credentials["clientId"], secret=credentials["clientSecret"])
    return made
