"""A project from someone else, whose linked files lead to the user's own."""

from pathlib import Path

import pytest

from tests.e2e.test_import import make_project
from tests.e2e.user import User

SECRET = "correct horse battery staple"
HOURS = {"timezone": "UTC", "on": "mon-fri 08:00-19:00"}


def foreign(user: User) -> Path:
    """A file of the user's own, outside of the project."""
    file = user.home / "mine.txt"
    file.write_text(f"{SECRET}\n")
    return file


@pytest.mark.parametrize("place", ["holidays.txt", "days/holidays.txt"])
def test_holidays_behind_a_link_out_of_the_project_are_not_read(user: User, place: str) -> None:
    link = user.workspace / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(foreign(user))
    user.spec(lifecycle={"hours": {**HOURS, "holidays": place}})
    done = user("validate", "gpu.yaml")
    assert done.returncode == 2
    assert SECRET not in done.stdout + done.stderr
    assert "leads out of the spec's folder" in done.stderr


def test_holidays_behind_a_linked_folder_are_not_read(user: User) -> None:
    foreign(user)
    (user.workspace / "days").symlink_to(user.home)
    user.spec(lifecycle={"hours": {**HOURS, "holidays": "days/mine.txt"}})
    done = user("validate", "gpu.yaml")
    assert done.returncode == 2
    assert SECRET not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("import", "."), "gpu.yaml"),
        (("init",), "gpu.yaml"),
        (("export", "spec.yaml", "--format", "arm", "--output", "arm.json"), "arm.json"),
    ],
)
def test_files_are_not_written_through_a_link(user: User, words: tuple[str, ...], name: str) -> None:
    mine = foreign(user)
    user.spec(file="spec.yaml")
    make_project(user.workspace)
    (user.workspace / "gpu.yaml").unlink()
    (user.workspace / name).symlink_to(mine)
    done = user("--yes", *words)
    assert mine.read_text() == f"{SECRET}\n", done.stdout
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"`{name}`" in done.stderr
    assert "symbolic link" in done.stderr


def test_files_are_not_written_through_a_linked_folder(user: User) -> None:
    make_project(user.workspace)
    theirs = user.home / "theirs"
    theirs.mkdir()
    (user.workspace / "specs").symlink_to(theirs)
    done = user("--yes", "import", ".", "--output", "specs/gpu.yaml")
    assert (done.returncode, list(theirs.iterdir())) == (1, []), done.stdout + done.stderr


def test_a_file_next_to_the_project_can_be_written(user: User) -> None:
    make_project(user.workspace)
    done = user("import", ".", "--output", "../spec.yaml")
    assert done.returncode == 0, done.stderr
    assert (user.workspace.parent / "spec.yaml").is_file()


@pytest.mark.parametrize("named", [True, False])
def test_a_job_whose_environment_is_behind_a_link_out_of_the_project_is_refused(user: User, named: bool) -> None:
    folder = user.workspace / "aml_config"
    folder.mkdir()
    mine = foreign(user)
    mine.write_text("dependencies: [python=3.11]\n")
    conda = user.workspace / "conda.yml" if named else folder / "conda_dependencies.yml"
    conda.symlink_to(mine)
    line = "CondaDependenciesFile: conda.yml\n" if named else ""
    (folder / "docker.runconfig").write_text(f"Framework: Python\nTarget: docker\n{line}")
    (user.workspace / "train.py").write_text("print('ran')\n")
    found = user.fails("submit", "--json", "-c", "docker", "train.py", code="file-unreadable", exit_code=2)
    assert conda.name in found["note"]
    assert "leads out of the project" in found["note"]


def test_a_job_without_a_container_needs_no_environment(user: User) -> None:
    folder = user.workspace / "aml_config"
    folder.mkdir()
    (folder / "conda_dependencies.yml").symlink_to(foreign(user))
    (user.workspace / "train.py").write_text("print('ran')\n")
    assert user("submit", "-c", "local", "train.py").stdout == "ran\n"
