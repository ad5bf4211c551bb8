"""A resource group named in a spec is never deleted, and `reap` removes nothing in it, whatever its tags."""

import json

import pytest

from tests.e2e.azure import Azure
from tests.e2e.foreign import ADDRESSES, make_address, make_disk, make_group
from tests.e2e.user import User
from tests.variants import variant

LEFT_ALONE = "looks like ours, left alone"
OURS = {"gpuinfra:name": "my-dsvm"}
NAMED = "resource-group team: it is named in the spec, and empty; `az group delete --name team` deletes it"


def test_down_keeps_a_tagged_group_that_existed_before_its_machine(user: User, azure: Azure) -> None:
    make_group(azure, "team", **OURS)
    user.spec(resourceGroup="team", tags={"cost-center": "42"})
    notes = user.up()["plan"]["notes"]
    assert any("not deleted with it" in note for note in notes), notes
    receipt = user.down("gpu.yaml", "--delete", "--yes")
    assert azure.everything() == ["resourceGroups/team"]
    assert azure.group("team")["tags"] == OURS, "it is not changed either"
    assert (receipt["off"], receipt["left"]) == (True, [])
    assert receipt["kept"] == [NAMED]


@pytest.mark.parametrize("word", ["gpu.yaml", "my-dsvm"])
def test_down_keeps_an_empty_tagged_group_without_a_machine(user: User, azure: Azure, word: str) -> None:
    make_group(azure, "team", **OURS)
    user.spec(resourceGroup="team")
    before = azure.last_request()
    receipt = user.down(word, "--delete", "--yes")
    assert azure.writes(before) == []
    assert receipt["kept"] == [NAMED]


def test_down_without_a_spec_deletes_nothing_in_a_tagged_group_of_others(user: User, azure: Azure) -> None:
    user.up()
    user.down("my-dsvm", "--delete")
    (user.workspace / "gpu.yaml").unlink()
    make_group(azure, "web", **OURS)
    make_address(azure, "web", "my-dsvm-ip", OURS)
    before = azure.last_request()
    user("down", "my-dsvm", "--delete", "--yes")
    assert azure.writes(before) == []


def test_up_that_fails_keeps_a_tagged_group_that_existed_before(user: User, azure: Azure) -> None:
    make_group(azure, "team", **OURS)
    user.spec(resourceGroup="team")
    azure.fault("AllocationFailed", method="PUT", type="virtualMachines", count=0)
    assert user("up", "gpu.yaml").returncode == 1
    assert azure.everything() == ["resourceGroups/team"]


def test_up_that_fails_keeps_the_group_that_its_spec_names(user: User, azure: Azure) -> None:
    user.spec(resourceGroup="team")
    azure.fault("AllocationFailed", method="PUT", type="virtualMachines", count=0)
    failed = user("up", "gpu.yaml")
    assert failed.returncode == 1
    assert "the group team is kept" in failed.stderr, "another machine's `up` may be about to use it"
    assert azure.everything() == ["resourceGroups/team"]


@variant
def test_down_keeps_a_named_group_that_up_created(user: User, azure: Azure) -> None:
    user.spec(resourceGroup="team")
    user.up()
    user.spec(resourceGroup="team", admin={"username": "grace"})
    user.up("--yes", "--delete")
    assert user.down("my-dsvm", "--delete", "--yes")["kept"] == [NAMED]
    assert azure.everything() == ["resourceGroups/team"]
    assert azure.group("team").get("tags", {}) == {}


def test_reap_sweeps_nothing_in_a_tagged_group_of_others(user: User, azure: Azure) -> None:
    mine = {"gpuinfra:name": "gone"}
    make_group(azure, "web", **mine)
    make_address(azure, "web", "gone-ip", mine)
    make_disk(azure, "web", "gone-disk", mine)
    make_group(azure, "gpuinfra-gone", **mine)
    make_address(azure, "gpuinfra-gone", "gone-ip", mine)
    azure.control("POST", "clock", {"advance": 2 * 3600})
    done = user("reap", "--delete", "--yes", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(each["resourceGroup"], each["removed"]) for each in found["orphans"]] == [("gpuinfra-gone", True)]
    assert azure.part(ADDRESSES, "gone-ip", "web")
    assert sorted(line.split()[1] for line in found["leftAlone"]) == ["gone-disk", "gone-ip"]
    assert all(line.endswith(LEFT_ALONE) for line in found["leftAlone"])
    commands = {line.split()[1]: line.split("`")[1] for line in found["leftAlone"]}
    assert commands == {
        "gone-ip": "gpuinfra down SPEC --delete",
        "gone-disk": "az disk delete --resource-group web --name gone-disk",
    }
