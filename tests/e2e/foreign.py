"""Machines, disks and addresses of other users in the same subscription."""

from typing import Any

from tests.e2e.azure import Azure
from tests.e2e.user import REGION, SIZE

MACHINE, DISKS = "Microsoft.Compute/virtualMachines", "Microsoft.Compute/disks"
ADDRESSES, INTERFACES = "Microsoft.Network/publicIPAddresses", "Microsoft.Network/networkInterfaces"
OVER = "2026-01-01T00:00:00Z"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@example"
OTHER_HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB8eHRwbGhkYFxYVFBMSERAPDg0MCwoJCAcGBQQDAgEA"


def make_group(azure: Azure, group: str, **tags: str) -> None:
    azure.put(f"{azure.subscription}/resourcegroups/{group}", {"location": REGION, "tags": tags})


def make_disk(azure: Azure, group: str, name: str, tags: dict[str, str]) -> None:
    body = {"properties": {"creationData": {"createOption": "Empty"}, "diskSizeGB": 32}}
    azure.put(azure.id(DISKS, name, group), {"location": REGION, "tags": tags, **body})


def make_address(azure: Azure, group: str, name: str, tags: dict[str, str]) -> None:
    body = {"sku": {"name": "Standard"}, "properties": {"publicIPAllocationMethod": "Static"}}
    azure.put(azure.id(ADDRESSES, name, group), {"location": REGION, "tags": tags, **body})


def make_machine(
    azure: Azure, group: str, name: str, tags: dict[str, str], *, like_ours: bool = False, nic: str = ""
) -> None:
    """Create a machine without a guest; `like_ours` gives it the resource names of `up`. `nic` names its NIC."""
    azure.fault("no-boot", resource=name, count=0)
    subnet = {"name": "inner", "properties": {"addressPrefix": "10.0.0.0/20"}}
    network = azure.id("Microsoft.Network/virtualNetworks", "net", group)
    spaces = {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}, "subnets": [subnet]}
    azure.put(network, {"location": REGION, "properties": spaces})
    inner: dict[str, Any] = {"subnet": {"id": f"{network}/subnets/inner"}}
    if like_ours:
        make_address(azure, group, f"{name}-ip", tags)
        inner["publicIPAddress"] = {"id": azure.id(ADDRESSES, f"{name}-ip", group)}
    interface = azure.id(INTERFACES, nic or (f"{name}-nic" if like_ours else f"{name}-card"), group)
    configuration = {"ipConfigurations": [{"name": "first", "properties": inner}]}
    azure.put(interface, {"location": REGION, "properties": configuration})
    image = {"publisher": "microsoft-dsvm", "offer": "ubuntu-2204", "sku": "2204-gen2", "version": "latest"}
    keys = [{"path": "/home/ada/.ssh/authorized_keys", "keyData": KEY}]
    login = {"disablePasswordAuthentication": True, "ssh": {"publicKeys": keys}}
    disk = {"createOption": "FromImage", "name": f"{name}-disk" if like_ours else f"{name}-os"}
    option = {"deleteOption": "Delete"} if like_ours else {}
    host = name if like_ours else "guest"
    properties = {
        "hardwareProfile": {"vmSize": SIZE},
        "storageProfile": {"imageReference": image, "osDisk": disk},
        "osProfile": {
            "computerName": host,
            "adminUsername": "ada",
            "linuxConfiguration": login,
        },
        "networkProfile": {"networkInterfaces": [{"id": interface, "properties": {"primary": True, **option}}]},
    }
    azure.put(azure.id(MACHINE, name, group), {"location": REGION, "tags": tags, "properties": properties})
