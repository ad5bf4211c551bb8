"""The workspace of a folder: found above it, as git finds a repository."""

import os
from pathlib import Path

import pytest

from gpuinfra.app.settings import Settings
from gpuinfra.app.workspace_search import located_path, script_in_workspace, workspace_above

SPEC = "apiVersion: gpuinfra/v1\nname: a\nregion: eastus\nsize: Standard_NC4as_T4_v3\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def here(home: Path) -> Path:
    """The folder `project/src/deep` below the home folder."""
    here = home / "project" / "src" / "deep"
    here.mkdir(parents=True)
    return here


def mark(folder: Path, kind: str = "gpu.yaml") -> None:
    if kind.endswith(".yaml"):
        (folder / kind).write_text(SPEC)
    else:
        (folder / kind).mkdir()


@pytest.mark.parametrize("kind", ["gpu.yaml", "other.yaml", "aml_config", ".gpuinfra"])
def test_nearest_folder_with_a_mark_is_the_workspace(here: Path, kind: str) -> None:
    mark(here.parents[1], kind)
    assert workspace_above(here) == Path("../..")
    mark(here.parent, kind)
    assert workspace_above(here) == Path("..")
    mark(here, kind)
    assert workspace_above(here) == Path()


def test_folder_without_a_mark_above_is_its_own_workspace(here: Path) -> None:
    (here.parent / "values.yaml").write_text("apiVersion: v1\n")
    (here.parent / "aml_config").write_text("a file")
    assert workspace_above(here) == Path()


@pytest.mark.parametrize("is_folder", [True, False], ids=["clone", "worktree"])
def test_search_does_not_leave_the_repository(here: Path, is_folder: bool) -> None:
    mark(here.parents[1])
    repository = here.parent / ".git"
    repository.mkdir() if is_folder else repository.write_text("gitdir: elsewhere\n")
    assert workspace_above(here) == Path()
    mark(here.parent)
    assert workspace_above(here) == Path("..")


def test_home_folder_is_no_workspace_of_what_is_below(home: Path, here: Path) -> None:
    mark(home)
    mark(home, ".gpuinfra")
    mark(home.parent)
    assert workspace_above(here) == Path()
    assert workspace_above(home) == Path()


def test_folder_that_all_users_can_write_to_is_not_searched(here: Path) -> None:
    mark(here.parents[1])
    here.parent.chmod(0o777)
    assert workspace_above(here) == Path()


def test_folder_of_another_user_is_not_searched(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark(here.parent)
    monkeypatch.setattr(os, "getuid", lambda: here.stat().st_uid + 1)
    assert workspace_above(here) == Path()


def test_link_to_a_folder_is_searched_where_it_leads(home: Path, here: Path) -> None:
    mark(here.parent)
    (home / "link").symlink_to(here)
    assert workspace_above(home / "link") == Path("..")


def settings(workspace: Path, *, is_found: bool) -> Settings:
    return Settings(
        json=False,
        yes=False,
        verbose=False,
        cloud="sandbox",
        workspace=workspace,
        correlation_id="",
        is_found=is_found,
    )


@pytest.mark.parametrize(("is_found", "first"), [(True, "gpu.yaml"), (False, "../gpu.yaml")], ids=["found", "given"])
def test_file_is_in_the_folder_that_the_user_chose(
    here: Path, monkeypatch: pytest.MonkeyPatch, is_found: bool, first: str
) -> None:
    monkeypatch.chdir(here)
    given = settings(Path(".."), is_found=is_found)
    assert located_path(given, "gpu.yaml") == first
    mark(here.parent)
    assert located_path(given, "gpu.yaml") == "../gpu.yaml"
    mark(here)
    assert located_path(given, "gpu.yaml") == first
    (here.parent / "gpu.yaml").unlink()
    assert located_path(given, "gpu.yaml") == "gpu.yaml"


def test_script_of_the_current_folder_is_named_from_the_workspace(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(here)
    for folder in (here, here.parents[1]):
        (folder / "train.py").touch()
    found, given = (settings(Path("../.."), is_found=is_found) for is_found in (True, False))
    assert script_in_workspace(found, "train.py") == "src/deep/train.py"
    assert script_in_workspace(found, "../../train.py") == "train.py"
    assert script_in_workspace(found, "src/other.py") == "src/other.py"
    assert script_in_workspace(given, "train.py") == "train.py"
    assert script_in_workspace(found, None) is None
