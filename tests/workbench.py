"""Real files of Workbench projects, if they lie next to this checkout."""

import shutil
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "shared" / "data" / "workbench"

needs_projects = pytest.mark.skipif(not FOLDER.is_dir(), reason="the recorded projects are not beside this checkout")


def files(*suffixes: str) -> list[Path]:
    """Return every file, or those with these suffixes."""
    return sorted(file for file in FOLDER.rglob("*") if file.is_file() and (not suffixes or file.suffix in suffixes))


def copy_writable(folder: Path, copy: Path) -> None:
    """Copy a folder that may be read-only; the copy can be written to, also by a user who is not root."""
    shutil.copytree(folder, copy, copy_function=shutil.copyfile)
    for path in (copy, *copy.rglob("*/")):
        if path.is_dir():
            path.chmod(0o700)
