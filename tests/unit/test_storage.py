"""What a client knows of its runs before it deletes files on a target, and what it accepts from one."""

from typing import Any

import pytest

from gpuinfra.app.storage import sort_runs
from gpuinfra.models.run import LOG_INCOMPLETE, JobRef, Outputs, RunState
from gpuinfra.runner.errors import JobError
from gpuinfra.runner.storage import _item
from tests.runs import make_run

COMPLETE: dict[str, Any] = {
    "state": RunState.COMPLETED,
    "outputs": Outputs(complete=True),
    "job": JobRef("process", "p"),
}


def test_only_runs_with_everything_here_are_fetched() -> None:
    runs = [
        make_run("all", **COMPLETE),
        make_run("deleted-here", **COMPLETE),
        make_run("active", **{**COMPLETE, "state": RunState.RUNNING}),
        make_run("outputs", **{**COMPLETE, "outputs": Outputs(complete=False)}),
        make_run("log", **COMPLETE, warnings=(f"{LOG_INCOMPLETE}: no space left",)),
    ]
    fetched, unfetched = sort_runs(runs, lambda run: run != "deleted-here")
    assert (fetched, unfetched) == ({"all"}, {"active", "outputs", "log"})


@pytest.mark.parametrize("fields", [{"kind": "run\x1b]52;c;Z\x07"}, {}, {"size": "much"}, {"used": 1e300}])
def test_malformed_item_of_a_target_is_an_error(fields: dict[str, object]) -> None:
    usual = {"kind": "run", "name": "r1", "size": 1, "used": 0, "kept": ""}
    assert _item(usual).name == "r1"
    with pytest.raises(JobError):
        _item({**usual, **fields} if fields else {})
