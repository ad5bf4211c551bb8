"""Machines for tests: what they stand in, bodies, and what is left of them."""

import copy
import json
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.mgmt.compute.operations import DisksOperations, VirtualMachinesOperations

from tests.integration.sandbox.recordings import DATA, shape
from tests.integration.sandbox.servers import Sandbox

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@example"
GENERATION_2 = {"publisher": "microsoft-dsvm", "offer": "ubuntu-2204", "sku": "2204-gen2", "version": "latest"}
GENERATION_1 = {"publisher": "microsoft-dsvm", "offer": "ubuntu-2204", "sku": "2204", "version": "latest"}
PASSWORD = "Correct-horse-1"
T4, A100 = "Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4"
VERSION = "api-version=2024-11-01"
STORAGE, SYSTEM, LOGIN = "properties.storageProfile", "properties.storageProfile.osDisk", "properties.osProfile"
KEYS = f"{LOGIN}.linuxConfiguration.ssh"


class Place:
    """A group with a network, and machines in it."""

    def __init__(self, sandbox: Sandbox, location: str = "eastus", group: str = "demo") -> None:
        self.sandbox, self.location, self.group = sandbox, location, group
        # Azure's side is what is looked at: no guest has to boot for that.
        self.fault("no-boot", count=0)
        sandbox.resource.resource_groups.create_or_update(group, {"location": location})
        self.subnet = self._network()

    @property
    def machines(self) -> VirtualMachinesOperations:
        return self.sandbox.compute.virtual_machines

    @property
    def disks(self) -> DisksOperations:
        return self.sandbox.compute.disks

    def _network(self) -> str:
        space = {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}}
        subnets = [{"name": "inner", "properties": {"addressPrefix": "10.0.0.0/20"}}]
        body: Any = {"location": self.location, "properties": {**space, "subnets": subnets}}
        networks = self.sandbox.network.virtual_networks
        network: Any = networks.begin_create_or_update(self.group, "net", body).result()
        return str(network.subnets[0].id)

    def interface(self, name: str, address: str | None = None, location: str | None = None) -> str:
        """An interface, with a public address of its own if that is named."""
        properties: dict[str, Any] = {"subnet": {"id": self.subnet}}
        if address:
            wanted: Any = {
                "location": self.location,
                "sku": {"name": "Standard"},
                "properties": {"publicIPAllocationMethod": "Static"},
            }
            addresses = self.sandbox.network.public_ip_addresses
            made: Any = addresses.begin_create_or_update(self.group, address, wanted).result()
            properties["publicIPAddress"] = {"id": made.id}
        body: Any = {
            "location": location or self.location,
            "properties": {"ipConfigurations": [{"name": "first", "properties": properties}]},
        }
        interfaces = self.sandbox.network.network_interfaces
        result: Any = interfaces.begin_create_or_update(self.group, name, body).result()
        return str(result.id)

    def body(self, name: str, size: str = T4, **properties: Any) -> Any:
        """A machine with an interface of its own, made if it is not there."""
        network = properties.pop("networkProfile", None) or {
            "networkInterfaces": [{"id": self.interface(f"{name}-nic"), "properties": {"primary": True}}]
        }
        return {
            "location": self.location,
            "tags": {"owner": "me"},
            "properties": {
                "hardwareProfile": {"vmSize": size},
                "storageProfile": {
                    "imageReference": dict(GENERATION_2),
                    "osDisk": {"createOption": "FromImage", "managedDisk": {"storageAccountType": "StandardSSD_LRS"}},
                },
                "osProfile": profile(),
                "networkProfile": network,
                **properties,
            },
        }

    def body_like_ours(self, name: str) -> Any:
        """A machine as gpuinfra makes it: what it is made of has names that follow from its own."""
        body = self.body(name)
        body["properties"]["storageProfile"]["osDisk"]["name"] = f"{name}-disk"
        body["properties"]["osProfile"]["computerName"] = name
        body["properties"]["networkProfile"]["networkInterfaces"][0]["properties"]["deleteOption"] = "Delete"
        return body

    def make(self, name: str = "m", size: str = T4, **properties: Any) -> Any:
        """A machine that runs."""
        return self.put(name, self.body(name, size, **properties))

    def put(self, name: str, body: Any) -> Any:
        """The machine, once Azure is done with it."""
        return self.machines.begin_create_or_update(self.group, name, body).result()

    def spot(self, name: str, policy: str = "Deallocate") -> Any:
        """A spot machine."""
        return self.make(name, priority="Spot", evictionPolicy=policy, billingProfile={"maxPrice": -1})

    def path(self, name: str, rest: str = "", query: str = "") -> str:
        """A path of plain HTTP."""
        base = f"/subscriptions/{self.sandbox.subscription}/resourceGroups/{self.group}"
        return f"{base}/providers/Microsoft.Compute/virtualMachines/{name}{rest}?{VERSION}{query}"

    def id(self, name: str) -> str:
        """The id of a machine."""
        return self.path(name).split("?", maxsplit=1)[0]

    def status(self, name: str) -> tuple[str, str]:
        """Provisioning and power, from the instance view."""
        view: Any = self.machines.instance_view(self.group, name)
        codes = [status.code for status in view.statuses]
        power = [code for code in codes if code.startswith("PowerState/")]
        return codes[0], power[0].removeprefix("PowerState/") if power else ""

    def left(self) -> set[str]:
        """What is in the group, beside its network: type and name."""
        found = self.sandbox.server.cloud.store.resources(group=self.group)
        return {
            f"{resource.type.split('/')[-1]}/{resource.name}"
            for resource in found
            if resource.type and resource.type.split("/")[-1] not in ("", "virtualNetworks", "subnets")
        } - {f"/{self.group}"}

    def bill(self, name: str = "m") -> dict[str, Any]:
        """The last life of a machine on the bill."""
        return self.lives(name)[-1]

    def lives(self, name: str) -> list[dict[str, Any]]:
        """Every life of a machine on the bill."""
        machines: list[dict[str, Any]] = self.sandbox.control("GET", "bill")["machines"]
        return [machine for machine in machines if machine["id"] == self.id(name).lower()]

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.sandbox.control("POST", "clock", {"advance": seconds})

    def fault(self, name: str, **fields: Any) -> None:
        """Arm a fault."""
        self.sandbox.control("POST", "faults", {"name": name, **fields})

    def refused(self, name: str, body: Any, code: str) -> Any:
        """A PUT that Azure refuses with this code, and of which nothing is left."""
        before = self.left()
        with pytest.raises(HttpResponseError) as caught:
            self.put(name, body)
        assert error_of(caught.value).code == code, caught.value
        assert self.left() == before
        return caught.value


def profile(**parts: Any) -> dict[str, Any]:
    """An `osProfile` with a key."""
    return {
        "computerName": "guest",
        "adminUsername": "ada",
        "linuxConfiguration": {
            "disablePasswordAuthentication": True,
            "ssh": {"publicKeys": [{"path": "/home/ada/.ssh/authorized_keys", "keyData": KEY}]},
        },
        **parts,
    }


def error_of(error: HttpResponseError) -> Any:
    """What Azure said."""
    assert error.error is not None
    return error.error


def inline(subnet: str, delete: str = "Delete", address_delete: str = "Delete") -> dict[str, Any]:
    """A `networkProfile` with an interface and an address that are made with the machine."""
    address = {
        "name": "inline-ip",
        "sku": {"name": "Standard"},
        "properties": {"publicIPAllocationMethod": "Static", "deleteOption": address_delete},
    }
    configuration = {
        "name": "first",
        "properties": {"subnet": {"id": subnet}, "primary": True, "publicIPAddressConfiguration": address},
    }
    return {
        "networkApiVersion": "2022-11-01",
        "networkInterfaceConfigurations": [
            {
                "name": "inline-nic",
                "properties": {"primary": True, "deleteOption": delete, "ipConfigurations": [configuration]},
            }
        ],
    }


def settings(body: Any, path: str, value: Any) -> Any:
    """A copy of a body with another value; None takes it away."""
    changed = copy.deepcopy(body)
    *parents, last = path.split(".")
    inner = changed
    for name in parents:
        inner = inner.setdefault(name, {})
    inner[last] = value
    return changed


def full_body(subnet: str) -> Any:
    """A body with something in every part."""
    return {
        "location": "eastus",
        "tags": {"a": "b"},
        "zones": ["1"],
        "identity": {"type": "SystemAssigned"},
        "properties": {
            "hardwareProfile": {"vmSize": T4},
            "storageProfile": {
                "imageReference": dict(GENERATION_2),
                "osDisk": {
                    "createOption": "FromImage",
                    "caching": "ReadOnly",
                    "deleteOption": "Delete",
                    "diskSizeGB": 200,
                    "managedDisk": {"storageAccountType": "Premium_LRS"},
                },
                "dataDisks": [{"lun": 3, "createOption": "Empty", "diskSizeGB": 1, "caching": "None"}],
            },
            "osProfile": profile(customData="QUJD", adminPassword=PASSWORD),
            "networkProfile": inline(subnet),
            "priority": "Spot",
            "evictionPolicy": "Delete",
            "billingProfile": {"maxPrice": 1.5},
            "securityProfile": {"securityType": "Standard"},
            "userData": "QUJD",
        },
    }


# Of Windows, of extensions, or of disks without a resource of their own: outside of the slice.
UNLIKE = ("windowsConfiguration", "resources", "vhd", "extensions", "extensionHandlers[", "tags.")


def recorded(name: str) -> Any:
    """A recorded answer; without it the test is skipped."""
    file = DATA / "arm-golden" / f"{name}.json"
    if not file.exists():
        pytest.skip(f"no recording: {file} is not here")
    return json.loads(file.read_text("utf-8"))


def check_like(entry: Any, status: int, headers: dict[str, str], body: Any) -> None:
    """The same status, the same headers of operations, and every recorded key with its type."""
    assert status == entry["status"]
    names = {"azure-asyncoperation", "location"}
    assert names & set(headers) == names & {name.lower() for name in entry["response_headers"]}
    wanted = {
        path: kind for path, kind in shape(entry["response_body"]).items() if not any(part in path for part in UNLIKE)
    }
    ours = shape(body)
    assert {path: ours.get(path) for path in wanted} == wanted
