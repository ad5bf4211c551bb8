"""Outputs in deeply nested folders."""

from tests.e2e.jobs import outputs_of, run_for_bytes, submit_job
from tests.lab import LOCALDOCKER, REMOTE, Lab

DEPTH = 300
DIVES = f"""
import os
os.chdir("outputs")
for _ in range({DEPTH}):
    os.mkdir("d")
    os.chdir("d")
open("model", "w").write("deep")
"""


def test_outputs_in_deep_folders_are_fetched(lab: Lab) -> None:
    user = lab.user()
    script = user.script(DIVES)
    for name in (REMOTE, LOCALDOCKER):
        run = submit_job(user, "-c", name, script)
        assert run["outputs"] | {"path": ""} == {"files": 1, "size": 4, "complete": True, "path": ""}
        assert (outputs_of(user, run["id"]) / ("d/" * DEPTH) / "model").read_text() == "deep"
        assert run_for_bytes(user, "outputs", run["id"], "--list")[1].endswith(b"d/model\n")
    assert list(lab.home.glob(".gpuinfra/runs/*")) == []
