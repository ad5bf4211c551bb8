"""Ignore files of a foreign project: nothing outside of it is read, and nothing without end."""

from pathlib import Path

import pytest

from gpuinfra.runner.upload import UploadError, read_tree
from tests.upload_help import Told


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "outside").write_text("train.py\n")
    folder = tmp_path / "project"
    (folder / "deep").mkdir(parents=True)
    for name in ("train.py", "deep/train.py"):
        (folder / name).write_text("")
    return folder


@pytest.mark.parametrize("name", [".gitignore", ".gpuinfraignore"])
@pytest.mark.parametrize("folder", ["", "deep/"])
def test_ignore_file_outside_of_the_project_does_not_count(project: Path, folder: str, name: str) -> None:
    (project / name).write_text("\n")
    file = project / f"{folder}{name}"
    file.unlink(missing_ok=True)
    file.symlink_to("../outside" if not folder else "../../outside")
    tree = read_tree(project, None, Told())
    assert {"train.py", "deep/train.py"} <= {entry.path for entry in tree.entries}
    (skipped,) = tree.skipped
    assert skipped.path == f"{folder}{name}"
    assert "its lines do not count" in skipped.reason


def test_link_to_an_ignore_file_in_the_project_counts(project: Path) -> None:
    (project / "deep" / "rules").write_text("train.py\n")
    (project / ".gitignore").symlink_to("deep/rules")
    tree = read_tree(project, None, Told())
    assert "train.py" not in {entry.path for entry in tree.entries}
    assert tree.skipped == ()


def test_huge_ignore_file_is_refused(project: Path) -> None:
    with (project / ".gitignore").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UploadError, match="ignore file"):
        read_tree(project, None, Told())
