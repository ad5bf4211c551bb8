"""Find the script of a job in the project."""

from pathlib import Path

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.runner.resolve import script_path


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project" / "code").mkdir(parents=True)
    (tmp_path / "project" / "train.py").touch()
    (tmp_path / "project" / "code" / "deep.py").touch()
    (tmp_path / "elsewhere.py").touch()
    return tmp_path / "project"


@pytest.mark.parametrize(
    ("given", "here", "expected"),
    [
        ("train.py", ".", "train.py"),
        ("./train.py", ".", "train.py"),
        ("code/deep.py", ".", "code/deep.py"),
        ("deep.py", "code", "code/deep.py"),
        ("../train.py", "code", "train.py"),
        ("code/../train.py", ".", "train.py"),
    ],
)
def test_path_is_relative_to_the_project_or_the_current_folder(
    project: Path, given: str, here: str, expected: str
) -> None:
    assert script_path(project, given, project / here) == expected


def test_absolute_path_in_the_project_becomes_relative(project: Path) -> None:
    assert script_path(project, str(project / "train.py"), Path("/")) == "train.py"


def test_link_in_the_project_keeps_its_name(project: Path) -> None:
    (project / "link.py").symlink_to("train.py")
    assert script_path(project, "link.py", project) == "link.py"


@pytest.mark.parametrize("given", ["../elsewhere.py", "link.py"])
def test_script_outside_of_the_project_is_refused(project: Path, given: str) -> None:
    (project / "link.py").symlink_to("../elsewhere.py")
    with pytest.raises(Problem) as caught:
        script_path(project, given, project)
    assert caught.value.diagnostics[0].code is Code.SCRIPT_OUTSIDE


@pytest.mark.parametrize("given", ["trian.py", "", "code", "a\0b", "x" * 5000])
def test_missing_script_is_reported(project: Path, given: str) -> None:
    with pytest.raises(Problem) as caught:
        script_path(project, given, project)
    (found,) = caught.value.diagnostics
    assert found.code is Code.NO_SCRIPT
    assert caught.value.exit_code == 2
    assert given != "trian.py" or "train.py" in (found.help or "")
