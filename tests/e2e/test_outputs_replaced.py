"""A job that puts a link or a file in place of its folder for outputs: none of its outputs is here."""

import pytest

from tests.lab import REMOTE, Lab
from tests.variants import variants

LINK = """
import os
os.rmdir("outputs")
os.mkdir("results")
os.symlink("results", "outputs")
open("outputs/model", "w").write("weights")
"""
FILE = """
import os
os.rmdir("outputs")
open("outputs", "w").write("weights")
"""


@pytest.mark.parametrize(("code", "files"), variants((LINK, 0), (FILE, 1)))
def test_outputs_behind_a_link_are_never_complete(lab: Lab, code: str, files: int) -> None:
    user = lab.user()
    done = user("submit", "-c", REMOTE, "--json", user.script(code))
    (run,) = user.does("runs")["runs"]
    assert (done.returncode, run["exitCode"], run["outputs"]["complete"]) == (1, 0, False), done.stdout
    assert "outputs-incomplete" in done.stdout
    assert len(list(lab.home.glob(".gpuinfra/runs/*"))) == 1, "the machine keeps it"

    # The next run gets its copy of the project.
    assert user("submit", "-c", REMOTE, user.script("pass")).returncode == 0
    again = user("outputs", run["id"], "--json")
    assert user.does("runs", "show", run["id"])["run"]["outputs"]["files"] == files
    assert (again.returncode == 0) == bool(files), again.stdout
