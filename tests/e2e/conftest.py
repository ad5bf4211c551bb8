"""The installed program, run as a user would, and an embedded Azure for it."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.sandbox import running
from tests.az import Az
from tests.e2e.azure import Azure, reset
from tests.e2e.run_help import Start, clients
from tests.e2e.user import PROGRAM, Run, User, inherited, run_program
from tests.program import fork_server

__all__ = ["PROGRAM", "Run"]


@pytest.fixture
def run(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run `gpuinfra` in an empty folder with an empty home, without settings of this shell."""
    home = {"HOME": str(tmp_path_factory.mktemp("home"))}

    def run(*arguments: str, stdin: str = "", **variables: Any) -> subprocess.CompletedProcess[str]:
        return run_program(*arguments, folder=tmp_path, stdin=stdin, **{**home, **variables})

    return run


@pytest.fixture(scope="session")
def running_azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Azure]:
    """One embedded Azure for all tests of a worker."""
    folder = tmp_path_factory.mktemp("azure")
    made = Azure(folder / "sandbox")
    user = User(made, folder / "user", folder / "project")
    user.spec()
    variables = {**inherited(), **user.variables, "GPUINFRA_CLOUD": "sandbox"}
    fork_server().warm_up(user.workspace, variables, ["up", "gpu.yaml"], ["status"], ["down", "--delete", "gpu.yaml"])
    yield made
    running.stop(made.folder)


@pytest.fixture
def azure(running_azure: Azure) -> Azure:
    """The embedded Azure, empty and in its fastest profile."""
    reset(running_azure)
    return running_azure


@pytest.fixture
def user(azure: Azure, tmp_path: Path) -> User:
    """A user whose `gpu.yaml` describes `my-dsvm`."""
    created = User(azure, tmp_path / "user", tmp_path / "project")
    created.spec()
    return created


@pytest.fixture
def start(user: User) -> Iterator[Start]:
    """Start the program as that user, as a process that can be killed."""
    with clients(user) as start:
        yield start


@pytest.fixture
def az(azure: Azure, tmp_path: Path) -> Az:
    """`az` with a new login: an older one may have expired by the sandbox's clock."""
    described, credentials = azure.description, azure.control("GET", "credentials")
    made = Az(tmp_path / "az", endpoint=described.endpoint, authority_file=described.ca)
    made.login(tenant=credentials["tenant"], client=credentials["clientId"], secret=credentials["clientSecret"])
    return made
