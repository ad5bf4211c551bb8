"""`down` by the installed program: verified off, verified deleted, and foreign resources untouched."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import GROUP, Azure
from tests.e2e.run_help import wait_until
from tests.e2e.user import PARTS, REGION, SIZE, User
from tests.variants import variant, variants

SECURITY = ("Microsoft.Network/networkSecurityGroups", "my-dsvm-nsg")
DISK: dict[str, Any] = {
    "location": REGION,
    "properties": {"creationData": {"createOption": "Empty"}, "diskSizeGB": 32},
}


def _seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def test_down_stops_the_bill_and_up_starts_the_same_machine(user: User, azure: Azure) -> None:
    # Longer than the clock is advanced, so that the agent has no reason to deallocate first.
    user.spec(lifecycle={"lease": "4h", "idle": "3h"})
    user.up()
    machine, disk, address = azure.machine(), azure.disk(), azure.address()
    azure.control("POST", "clock", {"advance": 3600})

    receipt = user.down("my-dsvm")
    assert receipt["verifiedBy"] == "PowerState/deallocated"
    assert (receipt["off"], receipt["simulated"]) == (True, True)
    assert (receipt["size"], receipt["region"]) == (SIZE, REGION)
    assert receipt["billedSeconds"] == _seconds(receipt["billedFrom"], receipt["billedTo"])
    (billed,) = azure.bill()
    assert abs(receipt["billedSeconds"] - billed["billedSeconds"]) < 5, "an hour and a few seconds"
    assert abs(receipt["costUsd"] - billed["costUsd"]) < 0.005
    assert receipt["pricePerHourUsd"] == 0.631
    assert (receipt["deleted"], receipt["kept"], receipt["left"]) == ([], [], [])
    assert [each["name"] for each in receipt["residue"]] == ["my-dsvm-disk", "my-dsvm-ip"]
    assert azure.machine()["powerState"] == "PowerState/deallocated"
    assert azure.everything() == PARTS

    assert not azure.is_billed()
    azure.control("POST", "clock", {"advance": 3600})
    assert azure.bill()[0]["billedSeconds"] == billed["billedSeconds"], "an hour later it has cost no more"

    before = azure.last_request()
    again = user("down", "gpu.yaml")
    assert again.returncode == 0
    assert again.stdout.startswith("my-dsvm is off (simulated)\n")
    assert "Azure reports PowerState/deallocated" in again.stdout
    assert azure.writes(before) == []

    brought = user.up()
    writes = azure.writes(before)
    assert writes.count("POST my-dsvm/start") == 1
    assert not [write for write in writes if write.startswith(("PUT virtualMachines", "DELETE"))]
    assert brought["plan"]["summary"]["replace"] == 0
    assert azure.machine()["properties"]["vmId"] == machine["properties"]["vmId"]
    assert azure.disk()["properties"]["uniqueId"] == disk["properties"]["uniqueId"]
    assert azure.address() == address == brought["target"]["address"]
    assert azure.machine()["powerState"] == "PowerState/running"
    # It was off for an hour, so it gets a new lease.
    assert brought["leaseUntil"] > machine["tags"]["gpuinfra:lease-until"]
    assert azure.machine()["tags"]["gpuinfra:lease-until"] == brought["leaseUntil"]


@pytest.mark.parametrize(("words", "proof"), variants(((), "PowerState/deallocated"), (("--delete", "--yes"), "404")))
def test_receipt_has_time_and_cost_when_the_agent_has_just_deallocated_the_machine(
    user: User, azure: Azure, words: tuple[str, ...], proof: str
) -> None:
    user.spec(lifecycle={"lease": "4h", "idle": "1m"})
    user.up()
    try:
        azure.control("POST", "clock", {"speed": 10})
        wait_until(lambda: not azure.is_billed(), "the agent switches an idle machine off")
        # The sandbox's clock is almost frozen: deallocation and receipt fall into about the same second.
        azure.control("POST", "clock", {"speed": 0.05})
        before = azure.last_request()
        receipt = user.down("my-dsvm", *words)
    finally:
        azure.control("POST", "clock", {"speed": 1})
    (billed,) = azure.bill()
    assert (receipt["off"], receipt["verifiedBy"]) == (True, proof)
    assert receipt["cause"] == "its own agent, by Azure's log"
    assert receipt["billedSeconds"] == _seconds(receipt["billedFrom"], receipt["billedTo"])
    assert abs(receipt["billedSeconds"] - billed["billedSeconds"]) < 2
    assert abs(receipt["costUsd"] - billed["costUsd"]) < 0.001
    assert words or azure.writes(before) == [], "a deallocated machine needs no request"


def test_down_by_name_ignores_a_folder_of_the_same_name(user: User, azure: Azure) -> None:
    user.up()
    (user.workspace / "my-dsvm").mkdir()
    assert user.down("my-dsvm")["off"] is True
    assert not azure.is_billed()


@variant
def test_down_works_in_an_unwritable_folder(user: User, azure: Azure) -> None:
    user.up()
    user.workspace = Path("/sys/kernel/mm")  # unwritable for root as well
    assert user.down("my-dsvm")["off"] is True
    assert not azure.is_billed()


@variant
def test_down_continues_with_other_machines_after_a_failure(user: User, azure: Azure) -> None:
    files = [user.spec(file=f"{name}.yaml", name=name) for name in ("first", "second")]
    user.does("up", *files)
    azure.fault("ScopeLocked", method="POST", resource="first", count=0)
    done = user("down", "first", "second")
    assert {each["name"]: each["powerState"] for each in azure.bill()} == {"first": "running", "second": "deallocated"}
    assert done.returncode == 4, "a machine is still on"
    assert "ScopeLocked" in done.stdout + done.stderr
    assert "second is off" in done.stdout


def test_failed_down_does_not_suggest_delete(user: User, azure: Azure) -> None:
    user.up()
    azure.fault("ScopeLocked", method="POST", resource="my-dsvm", count=0)
    done = user("down", "my-dsvm")
    assert done.returncode == 4
    assert done.stdout.startswith("NOT VERIFIED: my-dsvm may still be on and billed")
    assert "--delete" not in done.stdout


def test_down_delete_reports_undeletable_resources_with_exit_code_4(user: User, azure: Azure) -> None:
    user.up()
    azure.control("POST", "clock", {"advance": 60})  # a receipt has whole seconds
    azure.fault("ScopeLocked", method="DELETE", type="networkSecurityGroups", count=0)
    done = user("down", "my-dsvm", "--delete", "--json")
    assert done.returncode == 4
    (receipt,) = json.loads(done.stdout)["receipts"]
    assert (receipt["off"], receipt["verifiedBy"]) == (True, "404")
    assert receipt["billedSeconds"] > 0
    assert {"resource-group gpuinfra-my-dsvm", "nsg my-dsvm-nsg"} <= set(receipt["left"])
    assert "ScopeLocked" in receipt["left"][-1]
    assert not azure.is_billed()
    assert {"networkSecurityGroups/my-dsvm-nsg", f"resourceGroups/{GROUP}"} <= set(azure.everything())
    assert "virtualMachines/my-dsvm" not in azure.everything()


def test_down_delete_keeps_foreign_resources_and_their_group(user: User, azure: Azure) -> None:
    user.up()
    foreign = azure.id("Microsoft.Compute/disks", "foreign-disk")
    azure.put(foreign, DISK)
    body = azure.get(foreign)

    receipt = user.down("my-dsvm", "--delete")
    assert azure.everything() == ["disks/foreign-disk", f"resourceGroups/{GROUP}"]
    assert azure.get(foreign) == body
    assert (receipt["off"], receipt["left"]) == (True, [])
    (kept,) = receipt["kept"]
    assert GROUP in kept
    assert "foreign-disk" in kept
    assert "gpuinfra:name" not in (azure.group().get("tags") or {}), "it is no longer ours"


def test_existing_group_is_used_and_never_deleted(user: User, azure: Azure) -> None:
    group = f"{azure.subscription}/resourcegroups/team"
    azure.put(group, {"location": "westeurope", "tags": {"owner": "alice"}})
    user.spec(resourceGroup="team")
    brought = user.up()
    assert any("not deleted with it" in note for note in brought["plan"]["notes"])
    assert azure.machine(group="team")["powerState"] == "PowerState/running"
    assert azure.group("team")["tags"] == {"owner": "alice"}

    receipt = user.down("my-dsvm", "--delete")
    assert receipt["off"] is True
    assert azure.everything() == ["resourceGroups/team"]
    assert azure.group("team")["tags"] == {"owner": "alice"}
    assert azure.group("team")["location"] == "westeurope"


def test_foreign_resource_with_our_name_is_not_touched(user: User, azure: Azure) -> None:
    azure.put(f"{azure.subscription}/resourcegroups/{GROUP}", {"location": REGION})
    azure.put(azure.id(*SECURITY), {"location": REGION, "properties": {"securityRules": []}})
    body, before = azure.part(*SECURITY), azure.last_request()

    problem = user.fails("up", "gpu.yaml", code="name-taken")
    assert "my-dsvm-nsg" in problem["note"]
    assert "another name" in problem["help"]
    assert azure.writes(before) == []
    receipt = user.down("my-dsvm", "--delete")
    assert (receipt["deleted"], receipt["existed"]) == ([], False)
    assert azure.writes(before) == []
    assert azure.part(*SECURITY) == body


def test_down_from_another_computer_needs_only_the_name(user: User, azure: Azure, tmp_path: Path) -> None:
    user.spec(resourceGroup="elsewhere")
    user.up()
    other = User(azure, tmp_path / "other" / "home", tmp_path / "other" / "project", key=False)

    off = other("down", "my-dsvm")
    assert off.returncode == 0, off.stderr
    assert "verified    Azure reports PowerState/deallocated" in off.stdout
    assert "to remove   gpuinfra down my-dsvm --delete --sandbox" in off.stdout
    assert azure.machine(group="elsewhere")["powerState"] == "PowerState/deallocated"
    assert not azure.is_billed()

    before = azure.last_request()
    # It is off, so its runs are unknown.
    receipt = other.down("my-dsvm", "--delete", "--yes")
    assert azure.everything() == ["resourceGroups/elsewhere"]
    assert (receipt["off"], receipt["verifiedBy"]) == (True, "404")
    kinds = {"nsg", "vnet", "public-ip", "nic", "vm", "disk", "shutdown-schedule"}
    assert {name.split()[0] for name in receipt["deleted"]} == kinds
    emptied = "it is named in the spec, and empty; `az group delete --name elsewhere` deletes it"
    assert receipt["kept"] == [f"resource-group elsewhere: {emptied}"]
    assert (receipt["left"], receipt["residue"]) == ([], [])
    deletes = [write for write in azure.writes(before) if write.startswith("DELETE")]
    assert deletes[0] == "DELETE virtualMachines/my-dsvm", "the most expensive resource is deleted first"

    before = azure.last_request()
    again = other("down", "my-dsvm", "--delete")
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("my-dsvm is gone (simulated)\n")
    assert "Azure reports 404" in again.stdout
    assert azure.writes(before) == []
    # It records only which project's state belongs to this user.
    known = [path.relative_to(other.home).as_posix() for path in other.home.rglob("*") if path.is_file()]
    assert [path.rpartition("/")[0] for path in known] == [".gpuinfra/workspaces"]
