"""Hostile repositories: reading their commit and their history runs no program that they name."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from provision.reaping.spec_history import spec_history
from runner.results.git import commit_of
from tests.git_help import WAYS, Hostile, make_repository


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
