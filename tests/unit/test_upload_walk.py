"""Ignore files of an untrusted project: no file outside of it is read, and no huge one."""

from pathlib import Path

import pytest

from gpuinfra.runner.errors import UploadError
from gpuinfra.runner.project_tree import read_tree
from tests.upload_help import RecordedProgress


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
def test_ignore_file_outside_of_the_project_is_not_used(project: Path, folder: str, name: str) -> None:
    (project / name).write_text("\n")
    file = project / f"{folder}{name}"
    file.unlink(missing_ok=True)
    file.symlink_to("../outside" if not folder else "../../outside")
    tree = read_tree(project, None, RecordedProgress())
    assert {"train.py", "deep/train.py"} <= {entry.path for entry in tree.entries}
    (skipped,) = tree.skipped
    assert skipped.path == f"{folder}{name}"
    assert "its rules are not used" in skipped.reason


def test_link_to_an_ignore_file_in_the_project_is_used(project: Path) -> None:
    (project / "deep" / "rules").write_text("train.py\n")
    (project / ".gitignore").symlink_to("deep/rules")
    tree = read_tree(project, None, RecordedProgress())
    assert "train.py" not in {entry.path for entry in tree.entries}
    assert tree.skipped == ()


def test_huge_ignore_file_is_refused(project: Path) -> None:
    with (project / ".gitignore").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UploadError, match="ignore file"):
        read_tree(project, None, RecordedProgress())
