"""Ignore files leave out the same paths as git."""

import os
import random
import subprocess
from pathlib import Path

import pytest

from gpuinfra.runner.project_tree import read_tree
from tests.real import program
from tests.upload_help import RecordedProgress

WORDS = ["a", "b", "build", "data", "x.py", "y.log", "z.md", "é", "with space", "-dash", "[x]"]
LINES = [
    *("a", "b/", "/a", "/data/*", "!/data/keep", "*.log", "!y.log", "*", "!*/", "!*.py", "data/**", "!data/**/"),
    *("!data/**/*.md", "**/build", "a/**/b", "build/", "!build/", "/*", "!/a", "# x", "", "x.p?", "[xy].*", "\\[x\\]"),
    *("with space", "with\\ space", "-dash", "é", "a/b", "a/b/", "!a/b", "*/x.py", "**", "!**/z.md", "/**/a", "z.md  "),
    *("a/", "!a/", "b/*", "!b/x.py", "**/a/**", "!", "/", "data", "!data", "./a", "*.*", "[!a]"),
    *("*a*t*", "b*i*d", "**/a/**/b", "a/**/b/**/x.py", "[!a]*a*", "*[.]*", "**/data/**/*.*"),
]


def create_files(root: Path, chance: random.Random) -> None:
    for _ in range(25):
        file = root.joinpath(*chance.choices(WORDS, k=chance.randint(1, 4)))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            if not file.exists():
                file.write_text("")
        except (NotADirectoryError, FileExistsError):
            continue
    folders = [root, *(each for each in root.rglob("*") if each.is_dir())]
    for folder in {root, *chance.choices(folders, k=2)}:
        lines = chance.choices(LINES, k=chance.randint(1, 6))
        (folder / ".gitignore").write_text(chance.choice(["\n", "\r\n"]).join(lines))


def listed_by_git(root: Path) -> set[str]:
    git = [program("git", "git"), "-C", str(root)]
    quiet = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    subprocess.run([*git, "init", "-q"], check=True, timeout=20, env=quiet)
    listed = [*git, "ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"]
    done = subprocess.run(listed, check=True, timeout=20, env=quiet, capture_output=True)
    return {name for name in done.stdout.decode().split("\0") if name}


@pytest.mark.parametrize("seed", range(40))
def test_same_files_as_git(tmp_path: Path, seed: int) -> None:
    project = tmp_path / "project"  # not the home folder itself, because `.ssh` is never sent
    project.mkdir()
    create_files(project, random.Random(seed))
    expected = listed_by_git(project)
    found = {entry.path for entry in read_tree(project, None, RecordedProgress()).entries if entry.kind == "f"}
    assert found == expected
