"""The id of a git repository."""

from pathlib import Path

import pytest

from gpuinfra.programs import ShallowCloneError, open_repository
from tests.git_help import git


def make(folder: Path, content: str) -> Path:
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, content)
    return folder


def commit(folder: Path, content: str) -> None:
    (folder / "file").write_text(content)
    git(folder, "add", ".")
    git(folder, "commit", "-qm", content)


def identify(folder: Path) -> str:
    with open_repository(folder) as repository:
        return repository.identify()


def test_every_clone_and_every_later_commit_has_the_same_id(tmp_path: Path) -> None:
    first = make(tmp_path / "first", "mine")
    before = identify(first)
    git(tmp_path, "clone", "-q", str(first), "clone")
    commit(tmp_path / "clone", "more")
    assert identify(first) == identify(tmp_path / "clone") == before
    assert before not in git(first, "rev-list", "HEAD")


def test_history_of_another_repository_cannot_be_merged_to_get_its_id(tmp_path: Path) -> None:
    victim, attacker = make(tmp_path / "victim", "theirs"), make(tmp_path / "attacker", "mine")
    assert identify(victim) != identify(attacker)
    git(attacker, "fetch", "-q", str(victim), "main")
    tree = git(attacker, "rev-parse", "HEAD^{tree}")
    for parents in (("HEAD", "FETCH_HEAD"), ("FETCH_HEAD", "HEAD")):
        words = [word for each in parents for word in ("-p", each)]
        merged = git(attacker, "commit-tree", tree, "-m", "merge", *words)
        git(attacker, "update-ref", "refs/heads/main", merged)
        assert identify(attacker) != identify(victim)


def test_shallow_clone_has_no_id(tmp_path: Path) -> None:
    first = make(tmp_path / "first", "mine")
    commit(first, "more")
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{first}", "clone")
    with pytest.raises(ShallowCloneError, match="fetch-depth: 0"):
        identify(tmp_path / "clone")
