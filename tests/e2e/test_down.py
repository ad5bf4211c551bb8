"""`down` by the installed program: off and proven, gone and proven, and never more than what is ours."""

import json
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.e2e.azure import GROUP, Azure
from tests.e2e.user import PARTS, REGION, SIZE, User

SECURITY = ("Microsoft.Network/networkSecurityGroups", "my-dsvm-nsg")
DISK: dict[str, Any] = {
    "location": REGION,
    "properties": {"creationData": {"createOption": "Empty"}, "diskSizeGB": 32},
}


def _seconds(start: str, end: str) -> float:
    return (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()


def test_down_stops_the_bill_and_up_starts_the_same_machine(user: User, azure: Azure) -> None:
    # Longer than the clock is moved, so that the agent has no reason to switch it off first.
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
    assert "Azure says PowerState/deallocated" in again.stdout
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
    # It was off for an hour: the lease is a new one.
    assert brought["leaseUntil"] > machine["tags"]["gpuinfra:lease-until"]
    assert azure.machine()["tags"]["gpuinfra:lease-until"] == brought["leaseUntil"]


def test_receipt_of_a_machine_that_its_agent_has_just_switched_off_has_its_time_and_its_cost(
    user: User, azure: Azure
) -> None:
    user.spec(lifecycle={"lease": "4h", "idle": "1m"})
    user.up()
    try:
        azure.control("POST", "clock", {"speed": 10})
        ends = time.monotonic() + 60
        while azure.is_billed():
            assert time.monotonic() < ends, "the agent does not switch an idle machine off"
            time.sleep(0.01)
        # The sandbox's time all but stands still: the agent's end and the receipt are of about the same second.
        azure.control("POST", "clock", {"speed": 0.05})
        before = azure.last_request()
        receipt = user.down("my-dsvm")
    finally:
        azure.control("POST", "clock", {"speed": 1})
    (billed,) = azure.bill()
    assert (receipt["off"], receipt["verifiedBy"]) == (True, "PowerState/deallocated")
    assert receipt["cause"] == "its own agent, by Azure's log"
    assert receipt["billedSeconds"] == _seconds(receipt["billedFrom"], receipt["billedTo"])
    assert abs(receipt["billedSeconds"] - billed["billedSeconds"]) < 2
    assert abs(receipt["costUsd"] - billed["costUsd"]) < 0.001
    assert azure.writes(before) == [], "it was off, and nothing is asked of it"


def test_a_folder_of_the_same_name_does_not_keep_it_on(user: User, azure: Azure) -> None:
    user.up()
    (user.workspace / "my-dsvm").mkdir()
    assert user.down("my-dsvm")["off"] is True
    assert not azure.is_billed()


def test_a_folder_that_cannot_be_written_does_not_keep_it_on(user: User, azure: Azure) -> None:
    user.up()
    user.workspace = Path("/sys/kernel/mm")  # not for root either
    assert user.down("my-dsvm")["off"] is True
    assert not azure.is_billed()


def test_one_that_cannot_be_switched_off_does_not_keep_others_on(user: User, azure: Azure) -> None:
    files = [user.spec(file=f"{name}.yaml", name=name) for name in ("first", "second")]
    user.does("up", *files)
    azure.fault("ScopeLocked", method="POST", resource="first", count=0)
    done = user("down", "first", "second")
    assert {each["name"]: each["powerState"] for each in azure.bill()} == {"first": "running", "second": "deallocated"}
    assert done.returncode == 4, "something is left on"
    assert "ScopeLocked" in done.stdout + done.stderr
    assert "second is off" in done.stdout


def test_who_wanted_it_off_is_not_told_to_delete_it(user: User, azure: Azure) -> None:
    user.up()
    azure.fault("ScopeLocked", method="POST", resource="my-dsvm", count=0)
    done = user("down", "my-dsvm")
    assert done.returncode == 4
    assert done.stdout.startswith("NOT VERIFIED: my-dsvm may still be on, and billed")
    assert "--delete" not in done.stdout


def test_what_cannot_be_deleted_is_said_and_ends_with_4(user: User, azure: Azure) -> None:
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


def test_what_others_put_into_our_group_stays_and_so_does_the_group(user: User, azure: Azure) -> None:
    user.up()
    foreign = azure.id("Microsoft.Compute/disks", "somebody-elses")
    azure.put(foreign, DISK)
    body = azure.get(foreign)

    receipt = user.down("my-dsvm", "--delete")
    assert azure.everything() == ["disks/somebody-elses", f"resourceGroups/{GROUP}"]
    assert azure.get(foreign) == body
    assert (receipt["off"], receipt["left"]) == (True, [])
    (kept,) = receipt["kept"]
    assert GROUP in kept
    assert "somebody-elses" in kept
    assert "gpuinfra:name" not in (azure.group().get("tags") or {}), "it is somebody else's from now on"


def test_a_group_that_was_there_is_used_and_never_deleted(user: User, azure: Azure) -> None:
    group = f"{azure.subscription}/resourcegroups/team"
    azure.put(group, {"location": "westeurope", "tags": {"owner": "somebody"}})
    user.spec(resourceGroup="team")
    brought = user.up()
    assert any("not deleted with it" in note for note in brought["plan"]["notes"])
    assert azure.machine(group="team")["powerState"] == "PowerState/running"
    assert azure.group("team")["tags"] == {"owner": "somebody"}

    receipt = user.down("my-dsvm", "--delete")
    assert receipt["off"] is True
    assert azure.everything() == ["resourceGroups/team"]
    assert azure.group("team")["tags"] == {"owner": "somebody"}
    assert azure.group("team")["location"] == "westeurope"


def test_a_name_that_somebody_else_has_taken_is_left_alone(user: User, azure: Azure) -> None:
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


def test_another_computer_with_nothing_but_the_name(user: User, azure: Azure, tmp_path: Path) -> None:
    user.spec(resourceGroup="elsewhere")
    user.up()
    other = User(azure, tmp_path / "other" / "home", tmp_path / "other" / "project", key=False)

    off = other("down", "my-dsvm")
    assert off.returncode == 0, off.stderr
    assert "verified    Azure says PowerState/deallocated" in off.stdout
    assert "to end it   gpuinfra down my-dsvm --delete --sandbox" in off.stdout
    assert azure.machine(group="elsewhere")["powerState"] == "PowerState/deallocated"
    assert not azure.is_billed()

    before = azure.last_request()
    # It is off, so nobody can ask it what is on its disk.
    receipt = other.down("my-dsvm", "--delete", "--yes")
    assert azure.everything() == ["resourceGroups/elsewhere"]
    assert (receipt["off"], receipt["verifiedBy"]) == (True, "404")
    kinds = {"nsg", "vnet", "public-ip", "nic", "vm", "disk", "shutdown-schedule"}
    assert {name.split()[0] for name in receipt["deleted"]} == kinds
    assert receipt["kept"] == ["resource-group elsewhere: it is named in the spec"]
    assert (receipt["left"], receipt["residue"]) == ([], [])
    deletes = [write for write in azure.writes(before) if write.startswith("DELETE")]
    assert deletes[0] == "DELETE virtualMachines/my-dsvm", "what costs most goes first"

    before = azure.last_request()
    again = other("down", "my-dsvm", "--delete")
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("my-dsvm is gone (simulated)\n")
    assert "Azure says 404" in again.stdout
    assert azure.writes(before) == []
    # It remembers which project's state is its own, and nothing else.
    known = [path.relative_to(other.home).as_posix() for path in other.home.rglob("*") if path.is_file()]
    assert [path.rpartition("/")[0] for path in known] == [".gpuinfra/workspaces"]
