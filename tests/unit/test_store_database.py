"""The file that the ledger and the history of runs share."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuinfra.diagnostics import Problem
from gpuinfra.models.receipt import LedgerEntry, LedgerEntryKind
from gpuinfra.models.run import Run, RunState
from gpuinfra.store import FILE, History, Ledger

NOW = datetime(2026, 11, 16, tzinfo=UTC)
RUN = Run("r1", "lab", "remote", "lab", ("python", "a.py"), RunState.PREPARING, NOW)
ENTRY = LedgerEntry(LedgerEntryKind.ON, NOW, "my-dsvm")


def test_ledger_and_history_share_one_file(tmp_path: Path) -> None:
    Ledger(tmp_path).add(ENTRY)
    history = History(tmp_path)
    assert history.list() == []
    history.save(RUN)
    assert (Ledger(tmp_path).entries(), history.list()) == ([ENTRY], [RUN])
    assert [each.name for each in tmp_path.iterdir()] == [FILE]


def test_problem_names_what_was_needed(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"not a database" * 1000)
    for use, summary in ((Ledger(tmp_path).entries, "broken ledger"), (History(tmp_path).list, "broken history")):
        with pytest.raises(Problem) as caught:
            use()
        (problem,) = caught.value.diagnostics
        assert problem.summary == summary
        assert "empty ledger and history" in (problem.help or "")
