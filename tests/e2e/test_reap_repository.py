"""`reap --specs` acts only on machines whose specs come from the repository that it reads."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.repository import commit_all, git
from tests.e2e.user import SPEC, User, run_reap
from tests.variants import variants

LONG = {"lease": "3d", "idle": "2d"}
MACHINE = "Microsoft.Compute/virtualMachines"
TAG = "gpuinfra:repository"
NOT_FROM_HERE = "left alone: its spec is not from this repository"
SECRET = "ghp_0123456789abcdef"


def write_spec(folder: Path, **fields: Any) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / "theirs.yaml"
    file.write_text(json.dumps({**SPEC, **fields}))
    return file


def set_tags(azure: Azure, **tags: str | None) -> None:
    path = azure.id(MACHINE, "my-dsvm")
    changed = {**azure.get(path)["tags"], **{f"gpuinfra:{name}": value for name, value in tags.items()}}
    azure.send("PATCH", path, {"tags": {name: value for name, value in changed.items() if value is not None}})


@pytest.fixture
def committed(user: User) -> User:
    """A user whose machine is on, and whose spec is committed."""
    user.spec(lifecycle=LONG)
    commit_all(user, "my machine")
    user.up()
    return user


def check_left_alone(user: User, azure: Azure, *words: str) -> None:
    before = azure.last_request()
    found = run_reap(user, *words)
    assert (found["stopped"], found["deleted"], found["started"]) == ([], [], [])
    assert azure.writes(before) == []
    (line,) = found["leftAlone"]
    assert NOT_FROM_HERE in line
    assert "gpuinfra down my-dsvm" in line
    assert azure.machine()["powerState"] == "PowerState/running"


@pytest.mark.parametrize("tagged", variants(True, False))
def test_spec_deleted_in_another_repository_ends_no_machine(
    committed: User, azure: Azure, tmp_path: Path, *, tagged: bool
) -> None:
    if not tagged:
        set_tags(azure, repository=None)
    theirs = tmp_path / "theirs"
    spec = write_spec(theirs)
    commit_all(committed, "add", theirs)
    spec.unlink()
    commit_all(committed, "delete", theirs)
    azure.control("POST", "clock", {"advance": 25 * 3600})
    check_left_alone(committed, azure, "--specs", str(theirs))
    check_left_alone(committed, azure, "--specs", str(theirs), "--delete", "--yes")


def test_spec_of_another_repository_switches_no_machine_off(committed: User, azure: Azure, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    write_spec(theirs, power="deallocated")
    commit_all(committed, "off", theirs)
    check_left_alone(committed, azure, "--specs", str(theirs))


def test_spec_of_the_same_repository_switches_a_machine_off(committed: User, azure: Azure, tmp_path: Path) -> None:
    committed.spec(lifecycle=LONG, power="deallocated")
    commit_all(committed, "off")
    clone = tmp_path / "clone"
    git(committed, "clone", "-q", str(committed.workspace), str(clone))
    (stopped,) = run_reap(committed, "--specs", str(clone))["stopped"]
    assert stopped["cause"] == "its spec says `power: deallocated`"
    assert not azure.is_billed()


def test_shallow_clone_acts_on_no_machine_and_names_the_fix(committed: User, azure: Azure, tmp_path: Path) -> None:
    committed.spec(lifecycle=LONG, power="deallocated")
    commit_all(committed, "off")
    clone = tmp_path / "clone"
    git(committed, "clone", "-q", "--depth", "1", f"file://{committed.workspace}", str(clone))
    before = azure.last_request()
    found = run_reap(committed, "--specs", str(clone), code=2)
    assert azure.writes(before) == []
    assert "fetch-depth: 0" in " ".join(found["notes"])


def test_up_from_a_shallow_clone_keeps_the_tag_and_says_why_it_sets_none(
    committed: User, azure: Azure, tmp_path: Path
) -> None:
    tag = azure.machine()["tags"][TAG]
    commit_all(committed, "more")
    clone = tmp_path / "clone"
    git(committed, "clone", "-q", "--depth", "1", f"file://{committed.workspace}", str(clone))
    done = committed("up", str(clone / "gpu.yaml"))
    assert done.returncode == 0, done.stderr
    assert "fetch-depth: 0" in done.stderr
    assert azure.machine()["tags"][TAG] == tag
    assert committed("plan", str(clone / "gpu.yaml"), "--detailed-exitcode").returncode == 0


def test_tag_is_the_same_in_every_clone_and_holds_no_credentials(user: User, azure: Azure, tmp_path: Path) -> None:
    user.spec(lifecycle=LONG)
    commit_all(user, "my machine")
    git(user, "remote", "add", "origin", f"https://user:{SECRET}@github.example.com/team/specs.git")
    user.up()
    assert SECRET not in json.dumps(azure.machine()["tags"])
    commit_all(user, "more")
    clone = tmp_path / "clone"
    git(user, "clone", "-q", str(user.workspace), str(clone))
    assert user("plan", str(clone / "gpu.yaml"), "--detailed-exitcode").returncode == 0


def test_up_binds_a_machine_without_the_tag_in_place(committed: User, azure: Azure) -> None:
    tag = azure.machine()["tags"][TAG]
    set_tags(azure, repository=None)
    (change,) = committed.plan()["changes"]
    assert (change["action"], [each["what"] for each in change["differences"]]) == ("change", [f"tag {TAG}"])
    before = azure.last_request()
    committed.up()
    assert azure.writes(before) == ["PATCH virtualMachines/my-dsvm"]
    assert azure.machine()["tags"][TAG] == tag


def test_spec_outside_git_gives_no_tag_and_no_drift(user: User, azure: Azure) -> None:
    user.up()
    assert TAG not in azure.machine()["tags"]
    assert user.plan()["changes"] == []
