"""A project from someone else, whose symbolic links lead to the user's own files."""

from pathlib import Path

import pytest

from tests.e2e.user import User
from tests.lab import LOCAL, Lab

SCRIPT = "open('outputs/.bashrc', 'w').write('theirs')\n"
MINE = "mine"


def link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("place", [".gpuinfra", ".gpuinfra/journal.jsonl", ".gpuinfra/runs", ".gpuinfra/runs/r1/log"])
def test_links_in_the_state_folder_are_refused(user: User, place: str) -> None:
    mine = user.home / "mine"
    mine.mkdir()
    link(user.workspace / place, mine)
    for words in (("runs",), ("outputs", "last"), ("logs", "last")):
        assert user.fails(*words, code="file-unreadable")["note"].startswith(f"`{place}`")
    assert list(mine.iterdir()) == []


def test_outputs_are_not_copied_through_a_link_out_of_the_project(lab: Lab) -> None:
    user = lab.user()
    (user.workspace / "results").symlink_to("..")
    (user.workspace.parent / ".bashrc").write_text(MINE)
    assert user("submit", "-c", LOCAL, user.script(SCRIPT)).returncode == 0
    done = user("--yes", "outputs", "last", "results")
    assert done.returncode == 1, done.stdout
    assert "leads out of the project" in done.stderr
    assert (user.workspace.parent / ".bashrc").read_text() == MINE


def test_environment_behind_a_linked_folder_is_not_read(user: User) -> None:
    other = user.home / "other"
    other.mkdir()
    (other / "conda.yml").write_text("dependencies: [python=3.11, {pip: ['--index-url https://token@example.com/']}]")
    link(user.workspace / "d", other)
    folder = user.workspace / "aml_config"
    folder.mkdir()
    (folder / "x.runconfig").write_text("CondaDependenciesFile: d/conda.yml\nTarget: local\n")
    done = user("lint", "--json")
    assert "token" not in done.stdout + done.stderr
    assert "leads out of the project" in done.stdout
