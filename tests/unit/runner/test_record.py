"""A run while it happens, and what is remembered of it meanwhile."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuinfra.models.run import Run, RunState
from gpuinfra.runner.record import MOST_WARNINGS, Record
from gpuinfra.store.history import History

RUN = Run("r1", "lab", "remote", "lab", ("python", "a.py"), RunState.PREPARING, datetime(2026, 11, 16, tzinfo=UTC))


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(tmp_path)


@pytest.fixture
def record(history: History, tmp_path: Path) -> Record:
    made = Record(RUN, tmp_path, history)
    made.begin()
    return made


def test_a_change_is_remembered_at_once(record: Record, history: History) -> None:
    record.change(state=RunState.RUNNING)
    assert history.find("r1").state is RunState.RUNNING


def test_a_note_is_remembered_with_the_next_change(record: Record, history: History) -> None:
    record.note(exit_code=7)
    record.warn("look")
    record.warn("look")
    assert record.run.exit_code == 7
    assert history.find("r1").exit_code is None
    record.change(state=RunState.FAILED)
    found = history.find("r1")
    assert (found.exit_code, found.state, found.warnings) == (7, RunState.FAILED, ("look",))


def test_what_others_changed_stays(record: Record, history: History) -> None:
    history.update("r1", reason="cancelled")
    record.note(exit_code=143)
    assert record.refresh().reason == "cancelled"
    assert record.run.exit_code == 143
    record.change(state=RunState.CANCELLED)
    assert history.find("r1").reason == "cancelled"


def test_phases_are_timed_whatever_comes_of_them(record: Record, history: History) -> None:
    with pytest.raises(ValueError, match="no"), record.phase("upload"):
        raise ValueError("no")
    record.note_time("job", 1.23456)
    record.change()
    assert list(history.find("r1").timings) == ["upload", "job"]
    assert history.find("r1").timings["job"] == 1.235


def test_a_run_that_is_not_tracked_is_remembered_nowhere(tmp_path: Path) -> None:
    record = Record(RUN, tmp_path, None)
    record.begin()
    assert record.change(state=RunState.COMPLETED).state is RunState.COMPLETED
    assert record.refresh().state is RunState.COMPLETED
    assert not list(tmp_path.iterdir())


def test_warnings_have_a_limit(record: Record) -> None:
    for number in range(MOST_WARNINGS + 50):
        record.warn(f"outputs/{number} was not fetched")
    assert len(record.run.warnings) == MOST_WARNINGS + 1
    assert record.run.warnings[-1] == f"more than {MOST_WARNINGS} warnings: the rest is left out"
