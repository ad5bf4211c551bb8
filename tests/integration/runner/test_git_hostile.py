"""Hostile repositories: reading their commit and their history runs no program that they name."""

import os
import shutil
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

import gpuinfra.programs
from gpuinfra.programs import GitError, open_repository
from gpuinfra.provision.reaping.spec_history import spec_history
from gpuinfra.runner.record import commit_of
from tests.git_help import WAYS, Hostile, git, make_repository
from tests.variants import variants


@pytest.fixture
def hostile(tmp_path: Path) -> Hostile:
    folder = tmp_path / "project"
    make_repository(folder)
    return Hostile(folder, tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_reading_the_commit_runs_no_program_of_the_repository(hostile: Hostile, way: str) -> None:
    WAYS[way](hostile)
    hostile.marker.unlink(missing_ok=True)
    commit_of(hostile.folder)
    assert not hostile.marker.exists()


@pytest.mark.parametrize("way", WAYS)
def test_reading_the_history_runs_no_program_of_the_repository(hostile: Hostile, way: str) -> None:
    WAYS[way](hostile)
    hostile.marker.unlink(missing_ok=True)
    spec_history(hostile.folder, datetime.now(UTC))
    assert not hostile.marker.exists()


def test_a_folder_of_plain_files_does_not_count_as_a_repository(hostile: Hostile) -> None:
    folder = hostile.folder / "data"
    git(hostile.folder, "init", "-q", "--bare", str(folder))
    for name in ("objects", "refs"):
        shutil.copytree(hostile.folder / ".git" / name, folder / name, dirs_exist_ok=True)
    (folder / "HEAD").write_text((hostile.folder / ".git" / "HEAD").read_text())
    (folder / "config").write_text(
        f"[core]\n\trepositoryformatversion = 0\n\tbare = false\n\tworktree = {hostile.folder.parent}\n"
    )
    with pytest.raises(GitError), open_repository(folder):
        pass


@pytest.mark.parametrize("name", variants("HEAD", "config", "packed-refs"))
def test_named_pipe_in_the_git_folder_ends_reading_soon(
    hostile: Hostile, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpuinfra.programs, "OPEN_SECONDS", 1.0)
    (hostile.folder / ".git" / name).unlink(missing_ok=True)
    os.mkfifo(hostile.folder / ".git" / name)
    begun = time.monotonic()
    commit_of(hostile.folder)
    assert time.monotonic() - begun < 30, "it waits for the pipe"
