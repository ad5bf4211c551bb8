"""A tag alone makes nothing ours: what others own is reported, and never changed."""

import json
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.foreign import ADDRESSES, DISKS, MACHINE, OVER, make_address, make_disk, make_group, make_machine
from tests.e2e.user import User

LEFT_ALONE = "looks like ours, left alone"
OURS = {"gpuinfra:name": "my-dsvm"}


def reaped(user: User, *words: str) -> dict[str, Any]:
    done = user("reap", *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(json.loads(done.stdout))


def test_down_deletes_no_disk_of_another_group_that_carries_our_tag(user: User, azure: Azure) -> None:
    user.up()
    make_group(azure, "finance")
    make_disk(azure, "finance", "payroll-data", OURS)
    make_disk(azure, "finance", "my-dsvm-disk", OURS)
    receipt = user.down("my-dsvm", "--delete", "--yes")
    assert azure.everything() == ["disks/my-dsvm-disk", "disks/payroll-data", "resourceGroups/finance"]
    assert [line for line in receipt["kept"] if "payroll-data" in line and line.endswith(LEFT_ALONE)]
    assert [line for line in receipt["kept"] if "my-dsvm-disk" in line and line.endswith(LEFT_ALONE)]


def test_down_keeps_its_group_where_a_tagged_disk_of_others_is_in_it(user: User, azure: Azure) -> None:
    user.up()
    make_disk(azure, "gpuinfra-my-dsvm", "payroll-data", OURS)
    receipt = user.down("my-dsvm", "--delete", "--yes")
    assert azure.everything() == ["disks/payroll-data", "resourceGroups/gpuinfra-my-dsvm"]
    assert "payroll-data" in " ".join(receipt["kept"])


def test_reap_removes_no_address_of_others_that_carries_our_tag(user: User, azure: Azure) -> None:
    make_group(azure, "web")
    for name in ("shop-ip", "gone-ip"):
        make_address(azure, "web", name, {"gpuinfra:name": "gone"})
    azure.control("POST", "clock", {"advance": 2 * 3600})
    before = azure.last_request()
    found = reaped(user)
    assert azure.writes(before) == []
    assert sorted(line.split()[1] for line in found["leftAlone"]) == ["gone-ip", "shop-ip"]
    assert all(line.endswith(LEFT_ALONE) for line in found["leftAlone"])
    reaped(user, "--delete", "--yes")
    assert azure.part(ADDRESSES, "shop-ip", "web")


@pytest.mark.parametrize("name", ["payroll", "my-dsvm"])
def test_reap_stops_no_machine_of_others_that_carries_our_tags(user: User, azure: Azure, name: str) -> None:
    make_group(azure, "finance")
    make_machine(azure, "finance", "payroll", {"gpuinfra:name": name, "gpuinfra:lease-until": OVER})
    found = reaped(user)
    assert azure.machine("payroll", "finance")["powerState"] == "PowerState/running"
    assert (found["machines"], found["stopped"]) == (0, [])
    (line,) = (line for line in found["leftAlone"] if line.startswith("vm payroll"))
    assert line.endswith(LEFT_ALONE)
    assert LEFT_ALONE in user("reap").stdout


def test_status_and_cost_do_not_count_what_only_carries_our_tag(user: User, azure: Azure) -> None:
    make_group(azure, "finance")
    make_machine(azure, "finance", "payroll", {"gpuinfra:name": "payroll"})
    make_disk(azure, "finance", "payroll-data", OURS)
    found = user.does("status")
    assert found["machines"] == []
    assert [line for line in found["leftAlone"] if "payroll" in line and line.endswith(LEFT_ALONE)]
    cost = user("cost", "--json")
    assert "payroll" not in cost.stdout
    assert LEFT_ALONE in cost.stderr
    user.fails("down", "payroll", code="no-such-machine", exit_code=2)
    assert azure.part(DISKS, "payroll-data", "finance")
    assert azure.part(MACHINE, "payroll", "finance")


def test_adopt_refuses_a_machine_that_gpuinfra_did_not_make(user: User, azure: Azure) -> None:
    make_group(azure, "team")
    make_machine(azure, "team", "my-dsvm", {})
    user.spec(resourceGroup="team")
    before = azure.last_request()
    user.fails("up", "gpu.yaml", "--adopt", "--yes", code="name-taken")
    problem = user.fails("down", "gpu.yaml", "--delete", "--yes", code="untagged-machine", exit_code=4)
    assert "--adopt" not in problem["help"]
    assert azure.writes(before) == []
