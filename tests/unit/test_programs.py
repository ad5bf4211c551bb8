"""Which entries of PATH are searched for programs."""

from pathlib import Path

import pytest

from gpuinfra.programs import entries_outside


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "project" / "bin").mkdir(parents=True)
    return tmp_path / "project"


def test_relative_and_project_entries_are_removed_from_path(project: Path) -> None:
    link = project.parent / "link"
    link.symlink_to(project / "bin")
    found = entries_outside(["", ".", "bin", "~/bin", str(project / "bin"), str(link), "/usr/bin"], project)
    assert found == ["/usr/bin"]


def test_home_entries_are_kept_when_the_project_contains_the_home(tmp_path: Path, project: Path) -> None:
    entry = str(tmp_path / "home" / ".local" / "bin")
    assert entries_outside([entry], project) == [entry]
    assert entries_outside([entry], tmp_path / "home") == [entry]
    assert entries_outside([entry, "."], Path("/")) == [entry]


def test_folder_of_this_program_is_kept(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = project / ".venv" / "bin"
    monkeypatch.setattr("sys.executable", str(own / "python"))
    assert entries_outside([str(own), str(project / "bin")], project) == [str(own)]
