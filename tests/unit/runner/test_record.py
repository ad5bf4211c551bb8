"""The record of an active run, and what it saves to the history."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuinfra.models.run import Run, RunState
from gpuinfra.runner.record import MAX_WARNINGS, Record
from gpuinfra.store import History

RUN = Run("r1", "lab", "remote", "lab", ("python", "a.py"), RunState.PREPARING, datetime(2026, 11, 16, tzinfo=UTC))


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


@pytest.fixture
def record(history: History, tmp_path: Path) -> Record:
    made = Record(RUN, tmp_path, history)
    made.begin()
    return made


def test_change_is_saved_at_once(record: Record, history: History) -> None:
    record.change(state=RunState.RUNNING)
    assert history.find("r1").state is RunState.RUNNING


def test_note_is_saved_with_the_next_change(record: Record, history: History) -> None:
    record.note(exit_code=7)
    record.warn("look")
    record.warn("look")
    assert record.run.exit_code == 7
    assert history.find("r1").exit_code is None
    record.change(state=RunState.FAILED)
    found = history.find("r1")
    assert (found.exit_code, found.state, found.warnings) == (7, RunState.FAILED, ("look",))


def test_changes_of_other_processes_are_kept(record: Record, history: History) -> None:
    history.update("r1", reason="cancelled")
    record.note(exit_code=143)
    assert record.refresh().reason == "cancelled"
    assert record.run.exit_code == 143
    record.change(state=RunState.CANCELLED)
    assert history.find("r1").reason == "cancelled"


def test_failed_phases_are_timed(record: Record, history: History) -> None:
    with pytest.raises(ValueError, match="no"), record.phase("upload"):
        raise ValueError("no")
    record.note_time("job", 1.23456)
    record.change()
    assert list(history.find("r1").timings) == ["upload", "job"]
    assert history.find("r1").timings["job"] == 1.235


def test_untracked_run_is_not_saved(tmp_path: Path) -> None:
    record = Record(RUN, tmp_path, None)
    record.begin()
    assert record.change(state=RunState.COMPLETED).state is RunState.COMPLETED
    assert record.refresh().state is RunState.COMPLETED
    assert not list(tmp_path.iterdir())


def test_number_of_warnings_is_limited(record: Record) -> None:
    for number in range(MAX_WARNINGS + 50):
        record.warn(f"outputs/{number} was not fetched")
    assert len(record.run.warnings) == MAX_WARNINGS + 1
    assert record.run.warnings[-1] == f"more than {MAX_WARNINGS} warnings: the others are not recorded"
