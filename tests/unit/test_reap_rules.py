"""What `reap` has to know before it looks at anything, and what it does where that cannot be known."""

from pathlib import Path

from gpuinfra.app.reap import _rules
from gpuinfra.app.settings import Settings
from gpuinfra.provision.lifecycle.reap import Rules
from gpuinfra.provision.reaping.spec_history import SpecHistory
from gpuinfra.runner.results.history import FILE
from gpuinfra.workspace import STATE


def settings(workspace: Path, *, yes: bool = False) -> Settings:
    return Settings(json=False, yes=yes, verbose=False, cloud="sandbox", workspace=workspace, correlation_id="")


def test_who_knows_of_no_runs_deletes_nothing_unless_told_to(tmp_path: Path) -> None:
    wished = Rules(starts=True, deletes=True)
    found, (note,) = _rules(settings(tmp_path / "nowhere"), SpecHistory(), [], wished)
    assert (found.deletes, found.starts) == (False, True)
    assert note.startswith("nothing is deleted: ")
    assert _rules(settings(tmp_path / "nowhere", yes=True), SpecHistory(), [], wished) == (wished, [])
    assert _rules(settings(tmp_path / "nowhere"), SpecHistory(), [], Rules()) == (Rules(), [])


def test_a_history_that_cannot_be_read_saves_every_disk_and_no_machine(tmp_path: Path) -> None:
    (tmp_path / STATE).mkdir()
    (tmp_path / STATE / FILE).write_text("no database")
    wished = Rules(starts=True, deletes=True)
    found, (note,) = _rules(settings(tmp_path), SpecHistory(), [], wished)
    assert (found.deletes, found.starts) == (False, True)
    assert note.startswith("nothing is deleted: ")
    assert _rules(settings(tmp_path, yes=True), SpecHistory(), [], wished) == (wished, [])
    assert _rules(settings(tmp_path), SpecHistory(), [], Rules()) == (Rules(), [])
