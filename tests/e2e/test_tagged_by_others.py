"""A person who can write any tag gets nothing of theirs, or of others, stopped, changed or deleted by gpuinfra."""

import json
from typing import Any

from tests.e2e.azure import Azure
from tests.e2e.foreign import (
    ADDRESSES,
    DISKS,
    INTERFACES,
    MACHINE,
    OVER,
    make_address,
    make_disk,
    make_group,
    make_machine,
)
from tests.e2e.jobs import on_terminal
from tests.e2e.user import REGION, User

LEFT_ALONE = "looks like ours, left alone"
OURS = {"gpuinfra:name": "my-dsvm"}
NSGS, VNETS = "Microsoft.Network/networkSecurityGroups", "Microsoft.Network/virtualNetworks"


def patch_machine(azure: Azure, group: str, **body: Any) -> None:
    status, answer = azure.send("PATCH", azure.id(MACHINE, "my-dsvm", group), body)
    assert status in {200, 202}, answer


def attach_bobs_disk(azure: Azure, group: str = "gpuinfra-my-dsvm") -> None:
    make_group(azure, "bobs")
    make_disk(azure, "bobs", "bob-data", {})
    disk = {"id": azure.id(DISKS, "bob-data", "bobs")}
    attached = {"lun": 0, "createOption": "Attach", "managedDisk": disk, "deleteOption": "Delete"}
    patch_machine(azure, group, properties={"storageProfile": {"dataDisks": [attached]}})


def make_portal_network(azure: Azure, group: str, tags: dict[str, str]) -> None:
    """What the portal creates beside a machine `my-dsvm`, under the portal's own default names."""
    rule = {
        "priority": 300,
        "direction": "Inbound",
        "access": "Allow",
        "protocol": "Tcp",
        "sourceAddressPrefix": "*",
        "sourcePortRange": "*",
        "destinationAddressPrefix": "*",
        "destinationPortRange": "443",
    }
    rules = {"securityRules": [{"name": "https", "properties": rule}]}
    azure.put(azure.id(NSGS, "my-dsvm-nsg", group), {"location": REGION, "tags": tags, "properties": rules})
    subnet = {"name": "default", "properties": {"addressPrefix": "10.0.0.0/24"}}
    network, space = azure.id(VNETS, "my-dsvm-vnet", group), {"addressPrefixes": ["10.0.0.0/16"]}
    azure.put(network, {"location": REGION, "tags": tags, "properties": {"addressSpace": space, "subnets": [subnet]}})
    make_address(azure, group, "my-dsvm-ip", tags)
    address = {"id": azure.id(ADDRESSES, "my-dsvm-ip", group)}
    inner = {"subnet": {"id": f"{network}/subnets/default"}, "publicIPAddress": address}
    configurations = {"ipConfigurations": [{"name": "ipconfig1", "properties": inner}]}
    azure.put(azure.id(INTERFACES, "my-dsvm123", group), {"location": REGION, "properties": configurations})


def test_reap_does_not_stop_a_tagged_machine_of_others_whose_nic_has_our_name(user: User, azure: Azure) -> None:
    make_group(azure, "prod")
    make_machine(azure, "prod", "db1", {"gpuinfra:name": "db1", "gpuinfra:lease-until": OVER}, nic="db1-nic")
    before = azure.last_request()
    done = user("reap", "--json")
    assert azure.writes(before) == []
    assert [line for line in json.loads(done.stdout)["leftAlone"] if "db1" in line and line.endswith(LEFT_ALONE)]
    assert user.does("status")["machines"] == []
    user.fails("down", "db1", code="no-such-machine", exit_code=2)
    assert azure.machine("db1", "prod")["powerState"] == "PowerState/running"


def test_down_keeps_a_data_disk_that_others_attached_to_the_machine(user: User, azure: Azure) -> None:
    user.up()
    attach_bobs_disk(azure)
    with on_terminal(user, "down", "my-dsvm", "--delete", "--sandbox") as terminal:
        terminal.waits_for(b"Go on?")
        terminal.types(b"n\n")
        terminal.ends()
    assert b"disk bob-data in group bobs will be detached and kept" in terminal.seen
    receipt = user.down("my-dsvm", "--delete", "--yes")
    assert azure.everything() == ["disks/bob-data", "resourceGroups/bobs"]
    assert (receipt["off"], receipt["left"]) == (True, [])
    assert receipt["kept"] == ["disk bob-data in group bobs: it was attached to this machine, and is detached"]


def test_up_that_replaces_a_machine_keeps_a_data_disk_that_others_attached(user: User, azure: Azure) -> None:
    user.up()
    attach_bobs_disk(azure)
    user.spec(admin={"username": "grace"})
    notes = user.up("--yes", "--delete")["plan"]["notes"]
    assert azure.part(DISKS, "bob-data", "bobs")
    assert [note for note in notes if note.startswith("disk bob-data in group bobs")], notes


def test_tagged_network_of_others_in_a_named_group_is_not_ours(user: User, azure: Azure) -> None:
    make_group(azure, "team2")
    make_portal_network(azure, "team2", OURS)
    user.spec(resourceGroup="team2")
    before = azure.last_request()
    problem = user.fails("up", "gpu.yaml", code="name-taken")
    assert all(name in problem["note"] for name in ("my-dsvm-nsg", "my-dsvm-vnet", "my-dsvm-ip"))
    receipt = user.down("gpu.yaml", "--delete", "--yes")
    assert azure.writes(before) == []
    found = [line.split()[1] for line in receipt["kept"] if line.endswith(LEFT_ALONE)]
    assert sorted(found) == ["my-dsvm-ip", "my-dsvm-nsg", "my-dsvm-vnet"]


def test_network_that_a_machine_left_in_a_named_group_is_used_and_deleted(user: User, azure: Azure) -> None:
    make_group(azure, "team2")
    user.spec(resourceGroup="team2")
    user.up()
    kept = {"id": azure.id(INTERFACES, "my-dsvm-nic", "team2"), "properties": {"deleteOption": "Detach"}}
    patch_machine(azure, "team2", properties={"networkProfile": {"networkInterfaces": [kept]}})
    azure.send("DELETE", azure.id(MACHINE, "my-dsvm", "team2"))
    assert azure.part(INTERFACES, "my-dsvm-nic", "team2"), "and what it uses: all that a killed `up` can leave"
    user.up()
    azure.send("DELETE", azure.id(MACHINE, "my-dsvm", "team2"))
    assert user.down("gpu.yaml", "--delete", "--yes")["left"] == []
    assert azure.everything() == ["resourceGroups/team2"]


def test_down_keeps_a_group_that_the_spec_names_whatever_tags_say(user: User, azure: Azure) -> None:
    make_group(azure, "team2", **OURS)
    user.spec(resourceGroup="team2")
    user.up()
    patch_machine(azure, "team2", tags={**azure.machine(group="team2")["tags"], "gpuinfra:group": "created"})
    receipt = user.down("gpu.yaml", "--delete", "--yes")
    assert azure.everything() == ["resourceGroups/team2"]
    assert receipt["kept"] == ["resource-group team2: it is named in the spec"]
