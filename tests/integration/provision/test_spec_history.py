"""Which specs were deleted, from real repositories."""

import os
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuinfra.programs import Branches
from gpuinfra.provision.reaping.spec_history import SpecHistory, default_branch, spec_history

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
NAME = ("-c", "user.name=Alice", "-c", "user.email=alice@example.com", "-c", "commit.gpgsign=false")


def text(*names: str) -> str:
    return "\n---\n".join(f"apiVersion: gpuinfra/v1\nname: {name}\nregion: eastus" for name in names)


class Repository:
    """A repository with commits at given times."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str, days: float = 0) -> None:
        date = (NOW - timedelta(days=days)).isoformat()
        dates = {
            "GIT_AUTHOR_DATE": date,
            "GIT_COMMITTER_DATE": date,
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
        }
        done = subprocess.run(
            ["git", *NAME, *words], cwd=self.folder, env=dates, timeout=20, check=False, capture_output=True
        )
        assert done.returncode == 0, done.stderr

    def commit(self, days: float, **files: str | None) -> None:
        """Commit files by name, with `__` for a slash; None removes a file."""
        for name, content in files.items():
            self.write(f"{name.replace('__', '/')}.yaml", content)
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "whatever", days=days)

    def write(self, name: str, content: str | None) -> None:
        path = self.folder / name
        if content is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)

    def gone(self, below: str = ".") -> dict[str, float]:
        """Return names and how many days ago they were deleted."""
        found = spec_history(self.folder / below, NOW)
        assert found.note == ""
        return {name: (NOW - at).total_seconds() / 86400 for name, at in found.deleted.items()}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "repository")


def test_removed_file_is_a_deleted_spec(repository: Repository) -> None:
    repository.commit(9, a=text("a"), b=text("B", "c"), other="name: x\n")
    repository.commit(3, a=None)
    repository.commit(2, b=text("c"), other=None)
    assert repository.gone() == {"a": 3, "b": 2}


def test_moved_spec_is_not_deleted(repository: Repository) -> None:
    repository.commit(9, a=text("a"), b=text("b"))
    repository.commit(8, a=None, sub__deep=text("a"))
    repository.commit(7, b=text("b") + "\nsize: nonsense\n")
    assert repository.gone() == {}


def test_only_files_below_the_folder_count(repository: Repository) -> None:
    repository.commit(9, specs__a=text("a"), specs__b=text("b"), other__c=text("c"), specs__node_modules__d=text("d"))
    repository.commit(1, specs__a=None, other__c=None, specs__node_modules__d=None)
    assert repository.gone("specs") == {"a": 1}
    assert repository.gone("other") == {"c": 1}
    assert repository.gone() == {"a": 1, "c": 1}


def test_uncommitted_change_deletes_nothing(repository: Repository) -> None:
    repository.commit(9, a=text("a"), b=text("b"))
    repository.commit(3, b=None)
    repository.write("a.yaml", None)
    repository.write("new.yaml", text("b"))
    assert repository.gone() == {}


def test_invalid_yaml_still_names_its_machine(repository: Repository) -> None:
    repository.commit(9, a=text("a"))
    repository.commit(3, a=None, broken="apiVersion: gpuinfra/v1\nname: a\nregion: [\n")
    assert repository.gone() == {}


def test_merge_counts_from_its_date_on_the_main_branch(repository: Repository) -> None:
    repository.commit(9, a=text("a"), b=text("b"))
    repository.git("checkout", "-q", "-b", "side")
    repository.commit(8, a=None, passing=text("passing"))
    repository.commit(7, passing=None)
    repository.git("checkout", "-q", "main")
    repository.commit(5, b=text("b") + "\n")
    repository.git("merge", "-q", "--no-ff", "-m", "merged", "side", days=2)
    assert repository.gone() == {"a": 2}


def test_unusual_file_names_are_read(repository: Repository) -> None:
    for odd in ("with space", "new\nline", "tëxt", "-dash", ":colon", 'quo"te'):
        repository.write(f"{odd}/{odd}.yml", text("a"))
    repository.commit(9, z=text("z"))
    for odd in ("with space", "new\nline", "tëxt", "-dash", ":colon", 'quo"te'):
        (repository.folder / odd / f"{odd}.yml").unlink()
    repository.commit(1)
    assert repository.gone() == {"a": 1}
    assert repository.gone(".") == {"a": 1}


def test_old_deletions_are_ignored(repository: Repository) -> None:
    repository.commit(200, a=text("a"))
    repository.commit(91, a=None)
    repository.commit(1, b=text("b"))
    assert repository.gone() == {}


def empty(folder: Path) -> Path:
    return Repository(folder / "unborn").folder


def nowhere(folder: Path) -> Path:
    (folder / "plain").mkdir()
    return folder / "plain"


@pytest.mark.parametrize("make", [empty, nowhere])
def test_missing_history_is_noted(make: Callable[[Path], Path], tmp_path: Path) -> None:
    found = spec_history(make(tmp_path), NOW)
    assert found.deleted == {}
    assert found.note.startswith("no machine was compared with its spec: ")


def test_shallow_clone_is_noted(repository: Repository, tmp_path: Path) -> None:
    repository.commit(9, a=text("a"), b=text("b"))
    repository.commit(3, a=None)
    repository.git("clone", "-q", "--depth", "1", f"file://{repository.folder}", str(tmp_path / "shallow"))
    found = spec_history(tmp_path / "shallow", NOW)
    assert (found.deleted, "shallow" in found.note) == ({}, True)


def test_partial_clone_is_noted_until_its_files_are_fetched(repository: Repository, tmp_path: Path) -> None:
    repository.git("config", "uploadpack.allowFilter", "true")
    repository.commit(9, a=text("a"), b=text("b"))
    repository.commit(3, a=None)
    clone = tmp_path / "partial"
    repository.git("clone", "-q", "--filter=blob:none", f"file://{repository.folder}", str(clone))
    found = spec_history(clone, NOW)
    assert (found.deleted, found.is_shallow) == ({}, True)
    assert "the clone is partial" in found.note
    command = found.note.split("`")[1].split()
    repository.git("-C", str(clone), *command[1:])
    assert set(spec_history(clone, NOW).deleted) == {"a"}


def test_spec_in_a_file_that_is_broken_on_the_default_branch_is_not_deleted(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit(9, a=text("a"), b=text("b"))
    clone = tmp_path / "clone"
    repository.git("clone", "-q", f"file://{repository.folder}", str(clone))
    repository.commit(3, a=f"<<<<<<< HEAD\n{text('a')}", b=f"{text('b')}\n#{'x' * 300_000}")
    repository.git("-C", str(clone), "fetch", "-q")
    for name in ("a", "b"):
        (clone / f"{name}.yaml").unlink()
    repository.git("-C", str(clone), "commit", "-q", "-a", "-m", "not merged")
    found = spec_history(clone, NOW)
    assert found.deleted == {}
    assert found.committed == {"a", "b"}


def test_missing_git_is_noted(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert spec_history(repository.folder, NOW) == SpecHistory(
        note="no machine was compared with its spec: git is not installed"
    )


def names(*given: str, default: str = "", checked_out: str = "") -> list[str]:
    branches = Branches(checked_out, default, {name: name for name in given})
    return list(default_branch(branches, "head"))


ORIGIN, OTHER = "refs/remotes/origin/", "refs/remotes/other/"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (names(f"{ORIGIN}main", f"{ORIGIN}dev", default=f"{ORIGIN}dev"), [f"{ORIGIN}dev"]),
        (names(f"{ORIGIN}main", f"{ORIGIN}dev", "refs/heads/master"), [f"{ORIGIN}main"]),
        (names(f"{ORIGIN}dev", "refs/heads/main", default=f"{ORIGIN}gone"), [f"{ORIGIN}dev"]),
        (names(f"{ORIGIN}a/main", f"{ORIGIN}b"), ["head", f"{ORIGIN}a/main", f"{ORIGIN}b"]),
        (names(f"{ORIGIN}main", f"{ORIGIN}master"), ["head", f"{ORIGIN}main", f"{ORIGIN}master"]),
        (names("refs/heads/main", "refs/heads/a"), ["refs/heads/main"]),
        (names("refs/heads/main", f"{OTHER}x", checked_out="refs/heads/main"), ["refs/heads/main"]),
        (names("refs/heads/a", checked_out="refs/heads/a"), ["refs/heads/a"]),
        (names(), ["head"]),
    ],
)
def test_default_branch_is_known_or_all_possible_ones_count(found: list[str], expected: list[str]) -> None:
    assert found == expected


def test_specs_on_every_possible_default_branch_count(repository: Repository, tmp_path: Path) -> None:
    repository.commit(9, a=text("a"), b=text("b"))
    repository.git("branch", "one")
    repository.git("checkout", "-q", "-b", "two")
    repository.commit(5, a=None)
    repository.git("branch", "-D", "main")
    clone = tmp_path / "clone"
    repository.git("clone", "-q", str(repository.folder), str(clone))
    assert repository.gone() == {"a": 5}, "without a remote, what is checked out counts"
    found = spec_history(clone, NOW)
    assert (list(found.deleted), found.source and found.source.ref) == (["a"], "origin/two")
    (clone / ".git/refs/remotes/origin/HEAD").unlink()
    found = spec_history(clone, NOW)
    assert (found.deleted, found.source and found.source.is_known) == ({}, False)
