"""`prune` by the installed program: real runs on this computer, and machines of the embedded Azure."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from gpuinfra.models.run import Outputs
from gpuinfra.runner.log import LogFile
from gpuinfra.store import History
from tests.e2e.user import Run, User


def test_old_runs_are_deleted_and_others_stay(run: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('outputs/a.bin', 'wb').write(bytes(5000)); print('done')")
    for _ in range(4):
        assert run("submit", "-c", "local", "train.py").returncode == 0
    state = tmp_path / ".gpuinfra"
    history = History(state)
    new, old, unfetched, followed = (each.id for each in history.list())
    long_ago = datetime.now(UTC) - timedelta(days=40)
    for each in (old, unfetched, followed):
        history.update(each, ended=long_ago)
    history.update(unfetched, outputs=replace(Outputs(), complete=False))
    kept = {new, unfetched, followed}
    with LogFile(state / "runs" / followed / "log") as log:
        assert log.try_lock()
        shown = run("prune", "--dry-run")
        assert old in shown.stdout
        assert not any(each in shown.stdout for each in kept)
        refused = run("prune", "--json")
        assert (refused.returncode, json.loads(refused.stdout)["diagnostics"][0]["code"]) == (2, "needs-consent")
        assert {each.name for each in (state / "runs").iterdir()} == {old, *kept}

        (state / "runs" / ".gone-earlier").mkdir()
        done = run("prune", "--yes", "--json")
        assert "no run that ended" in run("prune", "--yes").stderr
    assert done.returncode == 0, done.stdout
    answer = json.loads(done.stdout)
    assert ([each["id"] for each in answer["runs"]], answer["deleted"]) == ([old], True)
    assert answer["size"] > 5000
    assert {each.name for each in (state / "runs").iterdir()} == kept
    assert {each.id for each in history.list()} == kept
    assert run("prune", "--yes", "--older-than", "soon").returncode == 2


def test_machine_that_is_off_is_not_started(user: User) -> None:
    user.spec()
    user.up()
    found = user.does("prune", "my-dsvm", "--dry-run")
    assert (found["target"], found["items"], found["deleted"]) == ("my-dsvm", [], False)
    user.down("my-dsvm")
    for name in ("my-dsvm", "my_dsvm"):
        assert "`gpuinfra up" in user.fails("prune", name, code="machine-is-off")["help"]
    (user.workspace / "gpu.yaml").unlink()
    assert "`gpuinfra up" in user.fails("prune", "my_dsvm", code="machine-is-off", exit_code=255)["help"]
    assert not user.azure.is_billed()
