"""Which commit a project is at, by the real git."""

import subprocess
from pathlib import Path

import pytest

from gpuinfra.runner.record import Commit, commit_of
from tests.real import program


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    done = subprocess.run(
        [program("git", "git"), *identity, *words], cwd=folder, check=True, capture_output=True, text=True, timeout=20
    )
    return done.stdout.strip()


def test_a_commit_and_changes(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert commit_of(tmp_path) is None
    (tmp_path / "a.py").write_text("1\n")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    found = commit_of(tmp_path)
    assert found is not None
    assert (found.id, found.dirty) == (git(tmp_path, "rev-parse", "HEAD"), False)
    (tmp_path / "new.py").touch()
    found = commit_of(tmp_path)
    assert found is not None
    assert found.dirty


def test_a_folder_that_is_in_no_repository(tmp_path: Path) -> None:
    assert commit_of(tmp_path / "nowhere") is None
    (tmp_path / ".git").write_text("nonsense")
    assert commit_of(tmp_path) is None


def test_no_program_of_the_projects_own_is_run(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / "a.py").touch()
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "config", "core.fsmonitor", f"touch {tmp_path}/ran; true")
    assert commit_of(tmp_path) is not None
    assert not (tmp_path / "ran").exists()


def commit_one(folder: Path, *options: str) -> str:
    git(folder, "init", "-q", *options)
    (folder / "a.py").write_text("1\n")
    (folder / "run.sh").write_text("2\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "first")
    return git(folder, "rev-parse", "HEAD")


@pytest.mark.parametrize("settings", [[], ["--object-format=sha256"]])
def test_a_linked_work_tree_is_read(tmp_path: Path, settings: list[str]) -> None:
    (tmp_path / "main").mkdir()
    head = commit_one(tmp_path / "main", *settings)
    git(tmp_path / "main", "worktree", "add", "-q", "../linked")
    assert commit_of(tmp_path / "linked") == Commit(head, dirty=False)
    (tmp_path / "linked" / "a.py").write_text("other\n")
    assert commit_of(tmp_path / "linked") == Commit(head, dirty=True)
    assert commit_of(tmp_path / "main") == Commit(head, dirty=False)


def test_a_folder_of_a_repository_with_a_split_index_is_read(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "b.py").write_text("1\n")
    head = commit_one(tmp_path)
    git(tmp_path, "update-index", "--split-index")
    (tmp_path / "a.py").write_text("other\n")
    assert commit_of(tmp_path) == Commit(head, dirty=True)
    assert commit_of(tmp_path / "below") == Commit(head, dirty=False)


def test_settings_that_name_no_program_are_respected(tmp_path: Path) -> None:
    head = commit_one(tmp_path)
    git(tmp_path, "config", "core.fileMode", "false")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "scratch").touch()
    (tmp_path / ".git/info/exclude").write_text("scratch\n")
    assert commit_of(tmp_path) == Commit(head, dirty=False)
