"""`plan DIR` and `status` show what costs money and is in no spec, and specs without a machine."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure, advance
from tests.e2e.foreign import make_address, make_disk, make_group, make_machine
from tests.e2e.repository import commit_all, git
from tests.e2e.user import SPEC, User

LIFECYCLE = {"lease": "3d", "idle": "2d"}
MACHINE = "Microsoft.Compute/virtualMachines"


def write(user: User, file: str, name: str, **fields: Any) -> None:
    path = user.workspace / file
    path.parent.mkdir(exist_ok=True)
    target = {"type": "remote"}
    path.write_text(json.dumps({**SPEC, "name": name, "lifecycle": LIFECYCLE, "target": target, **fields}))


@pytest.fixture
def renamed(user: User, azure: Azure) -> User:
    """A user who renamed the spec of a machine that is on; beside it are remains and a machine of others."""
    Path(user.workspace, "gpu.yaml").unlink()
    write(user, "specs/old.yaml", "old")
    write(user, "elsewhere/other.yaml", "other")
    commit_all(user, "specs")
    user.does("up", "specs", "elsewhere")
    write(user, "specs/old.yaml", "new")
    commit_all(user, "rename")
    marks = {"gpuinfra:name": "gone"}
    make_group(azure, "gpuinfra-gone", **marks)
    make_disk(azure, "gpuinfra-gone", "gone-disk", marks)
    make_address(azure, "gpuinfra-gone", "gone-ip", marks)
    make_machine(azure, "gpuinfra-old", "notebook", {})
    advance(azure, 20 * 60)
    return user


def unmanaged(answer: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(each["reason"], each["kind"], each["name"]) for each in answer["unmanaged"]]


BESIDE = [
    ("no-spec", "vm", "old"),
    ("no-machine", "disk", "gone-disk"),
    ("no-machine", "public-ip", "gone-ip"),
    ("foreign", "vm", "notebook"),
]


def test_plan_and_status_show_what_is_in_no_spec(renamed: User, azure: Azure) -> None:
    before = azure.last_request()
    done = renamed("plan", "specs", "--json", "--detailed-exitcode")
    plan = json.loads(done.stdout)
    assert done.returncode == 3
    assert [each["name"] for each in plan["plans"]] == ["new"]
    assert unmanaged(plan) == BESIDE, "and not `other`, whose spec is in another folder"
    old, disk, address, foreign = plan["unmanaged"]
    assert old["cause"].startswith("no spec in git since 20")
    assert (old["command"], old["powerState"], old["pricePerHourUsd"]) == (
        "gpuinfra down old --delete",
        "running",
        0.631,
    )
    assert abs(old["perMonthUsd"] - 22.85) < 0.01
    assert (disk["command"], disk["perMonthUsd"]) == ("gpuinfra down gone --delete", 1.54)
    assert address["perMonthUsd"] == 3.65
    assert (foreign["command"], foreign["pricePerHourUsd"]) == (None, 0.631)
    totals = plan["totals"]
    assert totals["complete"]
    assert abs(totals["perHourNowUsd"] - 0.631) < 1e-6, "`old` is on; machines of others do not count"
    # `old` was created 20 minutes ago, and can stay on until its lease ends as well.
    assert abs(totals["worstCaseUsd"] - (72 + 72 - 1 / 3) * 0.631) < 0.05
    assert abs(totals["perMonthOffUsd"] - (2 * 22.85 + 1.54 + 3.65)) < 0.02
    assert plan["simulated"] is True

    status = renamed.does("status")
    assert unmanaged(status) == BESIDE
    assert [(each["name"], each["pricePerHourUsd"]) for each in status["notCreated"]] == [("new", 0.631)]
    assert status["notCreated"][0]["spec"].endswith("specs/old.yaml")
    for command in (("plan", "specs"), ("status",)):
        shown = renamed(*command).stdout
        assert "vm old, group gpuinfra-old" in shown
        assert "end it: `gpuinfra down old --delete`" in shown
        assert "disk gone-disk, group gpuinfra-gone" in shown
        assert "vm notebook, group gpuinfra-old" in shown
    assert "worst case" in renamed("plan", "specs").stdout
    assert azure.writes(before) == []

    assert renamed("plan", "specs/old.yaml", "--json").returncode == 0
    assert "unmanaged" not in json.loads(renamed("plan", "specs/old.yaml", "--json").stdout), "a file, not a folder"
    for name in ("old", "gone"):
        assert renamed("down", name, "--delete", "--yes").returncode == 0, "the suggested commands end it"
    assert unmanaged(renamed.does("plan", "specs")) == []


def test_plan_of_a_folder_whose_last_spec_was_deleted_shows_its_machine(user: User, tmp_path: Path) -> None:
    write(user, "specs/old.yaml", "old")
    commit_all(user, "spec")
    user.does("up", "specs")
    check_pull_request(user, tmp_path)
    (user.workspace / "specs" / "old.yaml").unlink()
    (user.workspace / "specs" / "notes.txt").write_text("the machine is to go")
    commit_all(user, "delete")
    done = user("plan", "specs", "--json")
    answer = json.loads(done.stdout)
    assert done.returncode == 2
    assert [each["code"] for each in answer["diagnostics"]] == ["no-spec-found"]
    assert unmanaged(answer) == [("no-spec", "vm", "old")]


def check_pull_request(user: User, folder: Path) -> None:
    """Plan a branch that renames a spec, as CI does: in a detached checkout without `origin/HEAD`."""
    git(user, "clone", "-q", str(user.workspace), str(folder / "full"))
    ci = User(user.azure, folder / "home", folder / "full")
    git(ci, "checkout", "-q", "--detach")
    git(ci, "remote", "set-head", "origin", "--delete")
    write(ci, "specs/old.yaml", "new")
    commit_all(ci, "rename")
    plan = ci.does("plan", "specs")
    assert unmanaged(plan) == [("no-spec", "vm", "old")]
    assert plan["unmanaged"][0]["cause"] == "no spec in what is checked out, but one in git"

    git(user, "clone", "-q", "--depth", "1", (folder / "full").as_uri(), str(folder / "shallow"))
    own = user.azure.machine("old", "gpuinfra-old")
    path = user.azure.id(MACHINE, "old", "gpuinfra-old")
    tags = {name: value for name, value in own["tags"].items() if name != "gpuinfra:repository"}
    user.azure.send("PATCH", path, {"tags": tags})
    ci.workspace = folder / "shallow"
    plan = ci.does("plan", "specs")
    assert unmanaged(plan) == [], "whether the machine is from this repository is not known"
    assert "fetch-depth: 0" in plan["notes"][0]
    user.azure.send("PATCH", path, {"tags": own["tags"]})
