"""`reap` in a fresh clone, as CI runs it: without the records of any workspace, and without an SSH key."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure, advance, change_power
from tests.e2e.repository import commit_all, git
from tests.e2e.run_help import project
from tests.e2e.user import User

DAY = 24 * 3600
TAG = "gpuinfra:outputs-fetched"


@pytest.fixture
def user(user: User) -> User:
    """A user whose project with one spec is committed."""
    project(user, lease="3d", idle="2d")
    (user.workspace / ".gitignore").write_text(".gpuinfra\n*.compute\n*.runconfig\naml_config\n")
    commit_all(user, "one machine")
    return user


def reap_in_ci(user: User, tmp_path: Path, *words: str, code: int) -> dict[str, Any]:
    """Run `reap --delete` in a new clone, without the user's home and key."""
    number = len(list(tmp_path.glob("clone-*")))
    runner = User(user.azure, tmp_path / f"runner-{number}", tmp_path / f"clone-{number}", key=False)
    git(user, "clone", "-q", str(user.workspace), str(runner.workspace))
    done = runner("reap", "--specs", ".", "--delete", "--json", *words)
    assert done.returncode == code, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def delete_spec(user: User, azure: Azure) -> None:
    (user.workspace / "gpu.yaml").unlink()
    commit_all(user, "no machine")
    advance(azure, 2 * DAY)


def test_fresh_clone_deletes_a_machine_that_confirmed_its_outputs_fetched(
    user: User, azure: Azure, tmp_path: Path
) -> None:
    done = user("run", "gpu.yaml", "quick.py")
    assert done.returncode == 0, done.stderr
    assert azure.disk()["tags"][TAG] == azure.disk()["properties"]["LastOwnershipUpdateTime"]
    delete_spec(user, azure)
    (deleted,) = reap_in_ci(user, tmp_path, code=0)["deleted"]
    assert (deleted["name"], deleted["verifiedBy"]) == ("my-dsvm", "404")
    assert azure.everything() == []
    # The clone that deleted it is gone as well, and its record is in the subscription.
    (row,) = User(azure, tmp_path / "other", tmp_path / "elsewhere").does("cost")["cost"]["rows"]
    assert (row["sure"], row["missing"]) == ("exact", [])
    assert row["computeUsd"] == pytest.approx(azure.bill()[0]["costUsd"], abs=0.0005)


def test_fresh_clone_keeps_a_disk_that_was_used_since_and_fails(user: User, azure: Azure, tmp_path: Path) -> None:
    user.up()
    assert user.down("my-dsvm")["off"] is True
    tag = azure.disk()["tags"][TAG]
    # Neither its agent nor the portal writes the tag.
    change_power(azure, "start")
    change_power(azure, "deallocate")
    delete_spec(user, azure)
    for tags in ({TAG: tag}, {TAG: "2190-01-01T00:00:00Z"}, {}):
        path = azure.id("Microsoft.Compute/disks", "my-dsvm-disk")
        azure.send("PATCH", path, {"tags": {"gpuinfra:name": "my-dsvm", **tags}})
        found = reap_in_ci(user, tmp_path, code=4)
        assert found["deleted"] == []
        assert found["kept"][0]["notDeleted"] == "nothing confirms that all outputs on its disk were fetched"
    shown = user("reap", "--specs", ".", "--delete")
    assert shown.returncode == 4
    assert "NOT DELETED   my-dsvm: its spec was deleted at" in shown.stdout
    start = "`az vm start --resource-group gpuinfra-my-dsvm --name my-dsvm`, with `az` set up for the sandbox"
    assert start in shown.stdout
    assert "gpuinfra down my-dsvm --delete --yes --sandbox" in shown.stdout
    # The printed commands work.
    change_power(azure, "start")
    assert user.down("my-dsvm", "--delete")["verifiedBy"] == "404"
