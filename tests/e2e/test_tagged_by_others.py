"""A user who can write any tag cannot make gpuinfra stop, change or delete foreign resources."""

import json
from typing import Any

import pytest

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
from tests.e2e.jobs import open_terminal
from tests.e2e.run_help import Start
from tests.e2e.user import OTHER_REGION, REGION, User
from tests.variants import variant, variants

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


def add_bobs_address(azure: Azure, group: str = "gpuinfra-my-dsvm") -> None:
    """A public IP of Bob on a second configuration of the machine's NIC, to be deleted with the machine."""
    make_group(azure, "bobs")
    make_address(azure, "bobs", "shop-ip", {})
    nic = azure.part(INTERFACES, "my-dsvm-nic", group)
    subnet = nic["properties"]["ipConfigurations"][0]["properties"]["subnet"]
    address = {"id": azure.id(ADDRESSES, "shop-ip", "bobs"), "properties": {"deleteOption": "Delete"}}
    second = {"name": "second", "properties": {"subnet": subnet, "publicIPAddress": address}}
    nic["properties"]["ipConfigurations"].append(second)
    azure.put(azure.id(INTERFACES, "my-dsvm-nic", group), nic)


def add_bobs_subnet(azure: Azure, group: str = "gpuinfra-my-dsvm") -> None:
    network = azure.part(VNETS, "my-dsvm-vnet", group)
    network["properties"]["addressSpace"]["addressPrefixes"].append("10.78.0.0/24")
    network["properties"]["subnets"].append({"name": "bobs", "properties": {"addressPrefix": "10.78.0.0/24"}})
    azure.put(azure.id(VNETS, "my-dsvm-vnet", group), network)


def make_portal_network(azure: Azure, group: str, tags: dict[str, str]) -> None:
    """Create what the portal creates with a machine `my-dsvm`, under the portal's default names."""
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


def test_reap_does_not_stop_a_foreign_tagged_machine_whose_nic_has_our_name(user: User, azure: Azure) -> None:
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
    with open_terminal(user, "down", "my-dsvm", "--delete", "--sandbox") as terminal:
        terminal.wait_for_text(b"Continue?")
        terminal.type_keys(b"n\n")
        terminal.wait_for_exit()
    assert b"disk bob-data in group bobs will be detached and kept" in terminal.seen
    receipt = user.down("my-dsvm", "--delete", "--yes")
    assert azure.everything() == ["disks/bob-data", "resourceGroups/bobs"]
    assert (receipt["off"], receipt["left"]) == (True, [])
    assert receipt["kept"] == ["disk bob-data in group bobs: it was attached to this machine, and is detached"]


@variant
def test_up_that_replaces_a_machine_keeps_a_data_disk_that_others_attached(user: User, azure: Azure) -> None:
    user.up()
    attach_bobs_disk(azure)
    user.spec(admin={"username": "grace"})
    notes = user.up("--yes", "--delete")["plan"]["notes"]
    assert azure.part(DISKS, "bob-data", "bobs")
    assert [note for note in notes if note.startswith("disk bob-data in group bobs")], notes


def test_down_keeps_a_public_ip_that_others_put_on_the_nic(user: User, azure: Azure) -> None:
    user.up()
    add_bobs_address(azure)
    with open_terminal(user, "down", "my-dsvm", "--delete", "--sandbox") as terminal:
        terminal.wait_for_text(b"Continue?")
        terminal.type_keys(b"n\n")
        terminal.wait_for_exit()
    assert b"public-ip shop-ip in group bobs will be detached and kept" in terminal.seen
    receipt = user.down("my-dsvm", "--delete", "--yes")
    assert azure.everything() == ["publicIPAddresses/shop-ip", "resourceGroups/bobs"]
    assert (receipt["off"], receipt["left"]) == (True, [])
    assert receipt["kept"] == ["public-ip shop-ip in group bobs: it was attached to this machine, and is detached"]


def test_down_keeps_a_vnet_in_which_others_created_a_subnet(user: User, azure: Azure) -> None:
    user.up()
    add_bobs_subnet(azure)
    for _ in range(2):
        receipt = user.down("my-dsvm", "--delete", "--yes")
        assert azure.everything() == ["resourceGroups/gpuinfra-my-dsvm", "virtualNetworks/my-dsvm-vnet"]
        assert "bobs" in [each["name"] for each in azure.part(VNETS, "my-dsvm-vnet")["properties"]["subnets"]]
        assert (receipt["off"], receipt["left"]) == (True, [])
        assert receipt["kept"] == [
            "vnet my-dsvm-vnet: it contains resources of others: subnet bobs",
            "resource-group gpuinfra-my-dsvm: vnet my-dsvm-vnet is kept",
        ]
    network = azure.part(VNETS, "my-dsvm-vnet")
    network["properties"]["subnets"] = [each for each in network["properties"]["subnets"] if each["name"] != "bobs"]
    azure.put(azure.id(VNETS, "my-dsvm-vnet"), network)
    user.down("my-dsvm", "--delete", "--yes")
    assert azure.everything() == []


@variant
def test_down_keeps_a_vnet_of_a_named_group_in_which_others_created_a_subnet(user: User, azure: Azure) -> None:
    user.spec(resourceGroup="team2")
    user.up()
    add_bobs_subnet(azure, "team2")
    receipt = user.down("gpu.yaml", "--delete", "--yes")
    assert azure.everything() == ["resourceGroups/team2", "virtualNetworks/my-dsvm-vnet"]
    assert (receipt["off"], receipt["left"]) == (True, [])
    assert [line for line in receipt["kept"] if line.endswith("subnet bobs")]


def test_up_does_not_replace_a_vnet_in_which_others_created_a_subnet(user: User, azure: Azure) -> None:
    user.up()
    add_bobs_subnet(azure)
    user.spec(region=OTHER_REGION)
    before = azure.last_request()
    assert "subnet bobs" in user.fails("up", "gpu.yaml", "--delete", "--yes", code="name-taken")["note"]
    assert azure.writes(before) == []


def test_up_keeps_a_public_ip_that_others_put_on_the_nic(user: User, azure: Azure) -> None:
    user.up()
    add_bobs_address(azure)
    user.spec(tags={"cost-center": "42"})
    user.up()
    nic = azure.part(INTERFACES, "my-dsvm-nic")["properties"]["ipConfigurations"]
    assert [each["name"] for each in nic] == ["primary", "second"], "a change in place leaves it there"
    user.spec(admin={"username": "grace"})
    notes = user.up("--yes", "--delete")["plan"]["notes"]
    assert azure.part(ADDRESSES, "shop-ip", "bobs")
    assert [note for note in notes if note.startswith("public-ip shop-ip in group bobs")], notes


@pytest.mark.parametrize("forged", ["nic", "machine"])
def test_forgery_makes_no_network_of_others_ours(user: User, azure: Azure, forged: str) -> None:
    make_group(azure, "team2")
    make_portal_network(azure, "team2", OURS)
    azure.send("DELETE", azure.id(INTERFACES, "my-dsvm123", "team2"))
    theirs = {"networkSecurityGroups/my-dsvm-nsg", "publicIPAddresses/my-dsvm-ip", "virtualNetworks/my-dsvm-vnet"}
    if forged == "machine":
        azure.send("DELETE", azure.id(ADDRESSES, "my-dsvm-ip", "team2"))
        make_machine(azure, "team2", "my-dsvm", OURS, like_ours=True)
    subnet = {"id": f"{azure.id(VNETS, 'my-dsvm-vnet', 'team2')}/subnets/default"}
    inner = {"subnet": subnet, "publicIPAddress": {"id": azure.id(ADDRESSES, "my-dsvm-ip", "team2")}}
    properties = {
        "ipConfigurations": [{"name": "primary" if forged == "nic" else "first", "properties": inner}],
        "networkSecurityGroup": {"id": azure.id(NSGS, "my-dsvm-nsg", "team2")},
    }
    body = {"location": REGION, "tags": OURS, "properties": properties}
    azure.put(azure.id(INTERFACES, "my-dsvm-nic", "team2"), body)
    user.spec(resourceGroup="team2")
    receipt = user.down("gpu.yaml", "--delete", "--yes")
    # Azure itself deletes a public IP with the machine that uses it, if the NIC's owner wants it so.
    kept = theirs - {"publicIPAddresses/my-dsvm-ip"} if forged == "machine" else theirs
    assert kept <= set(azure.everything())
    found = {line.split()[1] for line in receipt["kept"] if line.endswith(LEFT_ALONE)}
    assert {"my-dsvm-nsg", "my-dsvm-vnet"} <= found


def test_tagged_public_ip_that_others_reserved_in_a_named_group_is_not_ours(user: User, azure: Azure) -> None:
    make_group(azure, "team2")
    make_address(azure, "team2", "my-dsvm-ip", OURS)
    user.spec(resourceGroup="team2")
    before = azure.last_request()
    assert "my-dsvm-ip" in user.fails("up", "gpu.yaml", code="name-taken")["note"]
    receipt = user.down("gpu.yaml", "--delete", "--yes")
    assert azure.writes(before) == []
    assert [line.split()[1] for line in receipt["kept"] if line.endswith(LEFT_ALONE)] == ["my-dsvm-ip"]


@pytest.mark.parametrize("word", variants("down", "up"))
def test_up_that_was_killed_before_the_machine_in_a_named_group_is_continued_or_deleted(
    user: User, azure: Azure, start: Start, word: str
) -> None:
    make_group(azure, "team2")
    user.spec(resourceGroup="team2")
    azure.fault("hold-before", method="PUT", type="virtualMachines")
    client = start("up", "gpu.yaml")
    client.until_held()
    client.kill()
    azure.clear_faults()
    assert azure.part(INTERFACES, "my-dsvm-nic", "team2")
    if word == "up":
        user.up()
    assert user.down("gpu.yaml", "--delete", "--yes")["left"] == []
    assert azure.everything() == ["resourceGroups/team2"]


def test_foreign_tagged_network_in_a_named_group_is_not_ours(user: User, azure: Azure) -> None:
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


@variant
def test_network_that_a_machine_left_in_a_named_group_is_used_and_deleted(user: User, azure: Azure) -> None:
    make_group(azure, "team2")
    user.spec(resourceGroup="team2")
    user.up()
    kept = {"id": azure.id(INTERFACES, "my-dsvm-nic", "team2"), "properties": {"deleteOption": "Detach"}}
    patch_machine(azure, "team2", properties={"networkProfile": {"networkInterfaces": [kept]}})
    azure.send("DELETE", azure.id(MACHINE, "my-dsvm", "team2"))
    assert azure.part(INTERFACES, "my-dsvm-nic", "team2"), "all that a killed `up` can leave"
    user.up()
    azure.send("DELETE", azure.id(MACHINE, "my-dsvm", "team2"))
    assert user.down("gpu.yaml", "--delete", "--yes")["left"] == []
    assert azure.everything() == ["resourceGroups/team2"]


@variant
def test_down_keeps_a_group_named_in_the_spec_whatever_its_tags(user: User, azure: Azure) -> None:
    make_group(azure, "team2", **OURS)
    user.spec(resourceGroup="team2")
    user.up()
    patch_machine(azure, "team2", tags={**azure.machine(group="team2")["tags"], "gpuinfra:group": "created"})
    receipt = user.down("gpu.yaml", "--delete", "--yes")
    assert azure.everything() == ["resourceGroups/team2"]
    emptied = "it is named in the spec, and empty; `az group delete --name team2` deletes it"
    assert receipt["kept"] == [f"resource-group team2: {emptied}"]
