"""A project from someone else, whose linked files lead to the user's own."""

from pathlib import Path

import pytest

from tests.e2e.azure import Azure
from tests.e2e.test_import import make_project
from tests.e2e.user import User

SECRET = "correct horse battery staple"
HOURS = {"timezone": "UTC", "on": "mon-fri 08:00-19:00"}


def foreign(user: User) -> Path:
    """Return a file of the user outside the project."""
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
    assert "--> gpu.yaml:1:" in done.stderr
    assert "help: put a copy of the file next to the spec" in done.stderr


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


def test_import_can_write_next_to_the_project(user: User) -> None:
    make_project(user.workspace)
    done = user("import", ".", "--output", "../spec.yaml")
    assert done.returncode == 0, done.stderr
    assert (user.workspace.parent / "spec.yaml").is_file()


@pytest.mark.parametrize("named", [True, False])
def test_job_with_an_environment_linked_out_of_the_project_is_refused(user: User, named: bool) -> None:
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


def test_job_without_a_container_ignores_the_environment(user: User) -> None:
    folder = user.workspace / "aml_config"
    folder.mkdir()
    (folder / "conda_dependencies.yml").symlink_to(foreign(user))
    (user.workspace / "train.py").write_text("print('ran')\n")
    assert user("submit", "-c", "local", "train.py").stdout == "ran\n"


@pytest.fixture
def elsewhere(user: User) -> Path:
    """A folder of the user's own, outside of the project, that the project's `aml_config` leads to."""
    folder = user.home / "elsewhere"
    folder.mkdir()
    (user.workspace / "aml_config").symlink_to(folder)
    return folder


def test_lint_does_not_repair_files_behind_a_linked_folder(user: User, elsewhere: Path) -> None:
    compute = elsewhere / "my_dsvm.compute"
    compute.write_text("type: remotedocker\naddress: 203.0.113.7\nusername: me\nbaseDockerImage: nvidia/cuda\n")
    before = compute.read_bytes()
    done = user("lint", "--fix")
    assert compute.read_bytes() == before, done.stdout
    assert done.returncode != 0
    assert "leads out of the project" in done.stderr


def test_up_creates_nothing_if_targets_are_behind_a_linked_folder(user: User, azure: Azure, elsewhere: Path) -> None:
    user.spec()
    last = azure.last_request()
    problem = user.fails("up", "gpu.yaml", code="file-unwritable")
    assert "leads out of the project" in problem["note"]
    assert azure.writes(last) == []
    assert list(elsewhere.iterdir()) == []


def test_detach_leaves_files_behind_a_linked_folder(user: User, elsewhere: Path) -> None:
    compute = elsewhere / "lab.compute"
    compute.write_text("type: remote\naddress: 203.0.113.7\nusername: me\n")
    user.fails("detach", "lab", "--yes", code="file-unwritable")
    assert compute.exists()


def test_workflow_is_not_written_through_a_linked_folder(user: User) -> None:
    theirs = user.home / "theirs"
    theirs.mkdir()
    for name in (".git", "infra"):
        (user.workspace / name).mkdir()
    (user.workspace / ".github").symlink_to(theirs)
    words = ["--with", "github-actions", "--package", "gpuinfra==1", "--workspace", "infra"]
    done = user("schedule", "install", *words, "--yes", sandbox=False)
    assert (done.returncode, list(theirs.iterdir())) == (1, []), done.stdout + done.stderr
    assert "leads out of the project" in done.stderr
