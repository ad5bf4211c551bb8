"""What `reap` must know before it acts, and what it does where that is unknown."""

from pathlib import Path

from gpuinfra.app.reap import _rules
from gpuinfra.app.settings import Settings
from gpuinfra.provision.reaping.decide import Rules
from gpuinfra.provision.reaping.spec_history import SpecHistory
from gpuinfra.store import FILE
from gpuinfra.workspace import STATE


def settings(workspace: Path, *, yes: bool = False) -> Settings:
    return Settings(json=False, yes=yes, verbose=False, cloud="sandbox", workspace=workspace, correlation_id="")


def test_missing_workspace_prevents_nothing(tmp_path: Path) -> None:
    requested = Rules(starts=True, deletes=True)
    assert _rules(settings(tmp_path / "nowhere"), SpecHistory(), [], requested) == (requested, [])


def test_unreadable_history_prevents_deletions_without_yes(tmp_path: Path) -> None:
    (tmp_path / STATE).mkdir()
    (tmp_path / STATE / FILE).write_text("no database")
    requested = Rules(starts=True, deletes=True)
    found, (note,) = _rules(settings(tmp_path), SpecHistory(), [], requested)
    assert (found.deletes, found.starts) == (False, True)
    assert note.startswith("nothing is deleted: ")
    assert _rules(settings(tmp_path, yes=True), SpecHistory(), [], requested) == (requested, [])
    assert _rules(settings(tmp_path), SpecHistory(), [], Rules()) == (Rules(), [])
