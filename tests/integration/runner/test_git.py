"""Which commit a project is at, by the real git."""

import subprocess
from pathlib import Path

from runner.results.git import commit_of
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
