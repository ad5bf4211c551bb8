"""Nothing is billed for a workspace that cannot be written: its target and its runs could not be recorded."""

from pathlib import Path

import pytest

from tests.e2e.azure import Azure
from tests.e2e.run_help import is_off, project
from tests.e2e.user import User

READ_ONLY = Path("/sys")  # unwritable, for root as well


@pytest.mark.parametrize("folder", ["aml_config", ".gpuinfra"])
@pytest.mark.parametrize("words", [["up", "gpu.yaml"], ["run", "gpu.yaml", "quick.py"]], ids=["up", "run"])
def test_run_and_up_with_an_unwritable_folder_create_nothing(
    user: User, azure: Azure, folder: str, words: list[str]
) -> None:
    project(user)
    (user.workspace / folder).symlink_to(READ_ONLY)
    done = user(*words)
    assert done.returncode == 1, done.stderr
    assert "symbolic link" in done.stderr
    assert folder in done.stderr
    assert azure.writes() == []


def test_up_of_a_read_only_workspace_creates_nothing(user: User, azure: Azure) -> None:
    spec = str(user.workspace / user.spec())
    problem = user.fails("up", spec, "--workspace", str(READ_ONLY), code="file-unwritable")
    assert str(READ_ONLY) in problem["note"]
    assert azure.writes() == []


def test_up_switches_a_machine_off_from_a_read_only_workspace(user: User, azure: Azure) -> None:
    user.up()
    spec = str(user.workspace / user.spec(power="deallocated"))
    done = user("up", spec, "--workspace", str(READ_ONLY))
    assert done.returncode == 0, done.stderr
    assert is_off(azure)


def test_failed_check_leaves_no_file(user: User) -> None:
    before = sorted(user.workspace.rglob("*"))
    (user.workspace / "aml_config").symlink_to(READ_ONLY)
    assert user("up", "gpu.yaml").returncode == 1
    (user.workspace / "aml_config").unlink()
    assert sorted(user.workspace.rglob("*")) == before
