"""A machine that was created on another computer: `up` says that it does not accept this computer's key."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.azure import Azure
from tests.e2e.user import PROGRAM, User, inherited


@pytest.fixture
def colleague(azure: Azure, tmp_path: Path) -> User:
    """Has the same spec and subscription, and an SSH key of their own."""
    other = User(azure, tmp_path / "other" / "home", tmp_path / "other" / "project")
    other.spec()
    return other


def test_up_says_how_to_add_a_key_to_a_machine_of_a_colleague(user: User, colleague: User, azure: Azure) -> None:
    user.up()
    problem = colleague.fails("up", "gpu.yaml", "--yes", code="login-refused")
    assert "created with another SSH key" in problem["note"]
    assert "it was on before, and was left on" in problem["note"]
    assert azure.machine()["powerState"] == "PowerState/running"
    # The suggested command works as it is, on the computer of the user who created the machine.
    command = problem["help"].split("`")[1]
    assert colleague.private_key.with_suffix(".pub").read_text().split()[1] in command
    path = os.pathsep.join([str(PROGRAM.parent), os.environ["PATH"]])
    variables = {**inherited(), **user.variables, "GPUINFRA_CLOUD": "sandbox", "PATH": path}
    done = subprocess.run(command, shell=True, cwd=user.workspace, env=variables, timeout=120, check=False)
    assert done.returncode == 0
    assert colleague.up("--yes")["target"]["machine"] == "my-dsvm"
