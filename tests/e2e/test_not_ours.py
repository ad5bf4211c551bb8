"""A tag alone does not make a resource ours: foreign resources are reported and never changed."""

import pytest

from tests.e2e.azure import Azure
from tests.e2e.foreign import ADDRESSES, DISKS, MACHINE, OVER, make_address, make_disk, make_group, make_machine
from tests.e2e.user import User, run_reap

LEFT_ALONE = "looks like ours, left alone"
OURS = {"gpuinfra:name": "my-dsvm"}


def test_down_keeps_a_disk_in_another_group_that_has_our_tag(user: User, azure: Azure) -> None:
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


def test_reap_keeps_foreign_addresses_that_have_our_tag(user: User, azure: Azure) -> None:
    make_group(azure, "web")
    for name in ("shop-ip", "gone-ip"):
        make_address(azure, "web", name, {"gpuinfra:name": "gone"})
    azure.control("POST", "clock", {"advance": 2 * 3600})
    before = azure.last_request()
    found = run_reap(user)
    assert azure.writes(before) == []
    assert sorted(line.split()[1] for line in found["leftAlone"]) == ["gone-ip", "shop-ip"]
    assert all(line.endswith(LEFT_ALONE) for line in found["leftAlone"])
    run_reap(user, "--delete", "--yes")
    assert azure.part(ADDRESSES, "shop-ip", "web")


@pytest.mark.parametrize("name", ["payroll", "my-dsvm"])
def test_reap_does_not_stop_foreign_machines_that_have_our_tags(user: User, azure: Azure, name: str) -> None:
    make_group(azure, "finance")
    make_machine(azure, "finance", "payroll", {"gpuinfra:name": name, "gpuinfra:lease-until": OVER})
    found = run_reap(user)
    assert azure.machine("payroll", "finance")["powerState"] == "PowerState/running"
    assert (found["machines"], found["stopped"]) == (0, [])
    (line,) = (line for line in found["leftAlone"] if line.startswith("vm payroll"))
    assert line.endswith(LEFT_ALONE)
    assert LEFT_ALONE in user("reap").stdout


def test_status_and_cost_ignore_foreign_resources_that_have_our_tag(user: User, azure: Azure) -> None:
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


def test_adopt_refuses_a_machine_that_gpuinfra_did_not_create(user: User, azure: Azure) -> None:
    make_group(azure, "team")
    make_machine(azure, "team", "my-dsvm", {})
    user.spec(resourceGroup="team")
    before = azure.last_request()
    user.fails("up", "gpu.yaml", "--adopt", "--yes", code="name-taken")
    problem = user.fails("down", "gpu.yaml", "--delete", "--yes", code="untagged-machine", exit_code=4)
    assert "--adopt" not in problem["help"]
    assert azure.writes(before) == []
