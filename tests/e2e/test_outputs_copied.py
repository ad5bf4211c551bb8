"""Copies of outputs inside the project are not sent with the next run."""

from pathlib import Path

import pytest

from tests.e2e.user import Run
from tests.variants import variants

SCRIPT = """
import os
print(sorted(name for name in os.listdir(".") if name != "outputs"))
open("outputs/model.txt", "w").write("a model")
"""


def test_copied_outputs_are_not_sent_with_the_next_run(run: Run, tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "train.py").write_text(SCRIPT)
    (project / "src" / "own.py").touch()
    words = ("--workspace", "project")
    assert run("submit", *words, "-c", "local", "train.py", HOME=home).stdout == "['src', 'train.py']\n"

    copied = run("outputs", *words, "last", "project/results", HOME=home)
    assert copied.returncode == 0, copied.stderr
    assert "runs do not upload it" in copied.stderr
    again = run("submit", *words, "-c", "local", "train.py", HOME=home)
    assert again.stdout == "['src', 'train.py']\n"
    assert "copies of outputs: results/" in again.stderr

    # A folder with other files is part of the project.
    mixed = run("outputs", *words, "last", "project/src", HOME=home)
    assert "uploads these copies, too" in mixed.stderr
    outside = run("outputs", *words, "last", "elsewhere", HOME=home)
    assert "next run" not in outside.stderr

    (project / ".gpuinfraignore").write_text("!results/\n")
    wanted = run("submit", *words, "-c", "local", "train.py", HOME=home)
    assert "'results'" in wanted.stdout
    assert "copies" not in wanted.stderr


@pytest.mark.parametrize(
    "name", variants(".git/hooks/pre-commit", "a/.GIT/config", ".gpuinfra/a", "aml_config/a.runconfig")
)
def test_outputs_that_would_change_the_project_itself_are_not_copied(run: Run, tmp_path: Path, name: str) -> None:
    script = f"from pathlib import Path\np = Path('outputs') / '{name}'\np.parent.mkdir(parents=True)\np.touch()\n"
    (tmp_path / "train.py").write_text(script)
    assert run("submit", "-c", "local", "train.py").returncode == 0
    done = run("outputs", "last", ".")
    assert (done.returncode, (tmp_path / name).exists()) == (1, False)
    assert "reserved name" in done.stderr
    assert run("outputs", "last").returncode == 0
