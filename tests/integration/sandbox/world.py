"""A small world of Azure resources, and for every kind of recorded request one of our own that is like it."""

import itertools
import uuid
from collections.abc import Callable
from typing import Any

from tests.integration.sandbox.machine_help import GENERATION_2, KEY
from tests.integration.sandbox.servers import Sandbox, wait_until

Answer = tuple[int, dict[str, str], Any]
VERSION = "api-version=2024-11-01"


class World:
    """One of each resource, and names for more."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self.numbers = itertools.count()
        self.subscription = f"/subscriptions/{sandbox.subscription}"
        self.group = f"{self.subscription}/resourceGroups/world"
        self.network = f"{self.group}/providers/Microsoft.Network"
        self.compute = f"{self.group}/providers/Microsoft.Compute"
        self.ask("PUT", self.group, self.group_body())
        identities = f"{self.group}/providers/Microsoft.ManagedIdentity/userAssignedIdentities"
        self.identity = self.made("PUT", f"{identities}/user", {"location": "eastus"})
        self.put_network_parts()
        self.interface = self.make_interface(public=True)
        self.machine = self.make_machine(interface=self.interface)
        self.spot = self.make_spot()
        self.wait_for_guest(self.machine)
        self.wait_for_guest(self.spot)
        # The other machines need no guests.
        sandbox.control("POST", "faults", {"name": "no-boot", "count": 0})
        self.spare = self.make_machine()

    def ask(self, method: str, path: str, body: Any = None, query: str = "") -> Answer:
        """A request of the world's own."""
        return self.sandbox.http(method, f"{path}?{VERSION}{query}", body)

    def made(self, method: str, path: str, body: Any = None) -> str:
        """The path, once the request for it has succeeded."""
        status, _, answer = self.ask(method, path, body)
        assert status < 300, answer
        return path

    def name(self, kind: str) -> str:
        """A name that nothing has yet."""
        return f"{kind}{next(self.numbers)}"

    # Bodies

    def group_body(self) -> dict[str, Any]:
        manager = f"{self.subscription}/resourceGroups/managers/providers/Microsoft.Solutions/applications/app"
        return {"location": "eastus", "tags": {"a": "b"}, "managedBy": manager}

    def put_network_parts(self) -> None:
        self.security_group = self.made("PUT", f"{self.network}/networkSecurityGroups/nsg", self.security_group_body())
        self.rule = self.made("PUT", f"{self.security_group}/securityRules/ssh", self.rule_body(200))
        self.virtual_network = self.made("PUT", f"{self.network}/virtualNetworks/vnet", self.network_body())
        self.subnet = f"{self.virtual_network}/subnets/inner"

    def network_body(self, second: int = 0) -> dict[str, Any]:
        subnet = {
            "name": "inner",
            "properties": {"addressPrefix": f"10.{second}.0.0/20", "networkSecurityGroup": {"id": self.security_group}},
        }
        return {
            "location": "eastus",
            "tags": {"a": "b"},
            "properties": {"addressSpace": {"addressPrefixes": [f"10.{second}.0.0/16"]}, "subnets": [subnet]},
        }

    def rule_body(self, priority: int) -> dict[str, Any]:
        return {
            "name": "ssh",
            "properties": {
                "protocol": "Tcp",
                "sourcePortRange": "*",
                "destinationPortRange": "22",
                "sourceAddressPrefix": "203.0.113.7/32",
                "destinationAddressPrefix": "*",
                "access": "Allow",
                "priority": priority,
                "direction": "Inbound",
                "description": "ssh",
            },
        }

    def security_group_body(self) -> dict[str, Any]:
        return {"location": "eastus", "tags": {"a": "b"}, "properties": {"securityRules": [self.rule_body(100)]}}

    def address_body(self) -> dict[str, Any]:
        return {
            "location": "eastus",
            "tags": {"a": "b"},
            "sku": {"name": "Standard", "tier": "Regional"},
            "zones": ["1"],
            "properties": {
                "publicIPAllocationMethod": "Static",
                "publicIPAddressVersion": "IPv4",
                "idleTimeoutInMinutes": 4,
                "dnsSettings": {"domainNameLabel": self.name("label")},
            },
        }

    def interface_body(self, *, public: bool) -> dict[str, Any]:
        configuration: dict[str, Any] = {"subnet": {"id": self.subnet}, "primary": True}
        if public:
            address = self.made("PUT", f"{self.network}/publicIPAddresses/{self.name('ip')}", self.address_body())
            configuration["publicIPAddress"] = {"id": address}
            self.address = getattr(self, "address", address)
        return {
            "location": "eastus",
            "tags": {"a": "b"},
            "properties": {
                "networkSecurityGroup": {"id": self.security_group},
                "ipConfigurations": [{"name": "first", "properties": configuration}],
            },
        }

    def make_interface(self, *, public: bool = False) -> str:
        return self.made(
            "PUT", f"{self.network}/networkInterfaces/{self.name('nic')}", self.interface_body(public=public)
        )

    def machine_body(self, interface: str, **properties: Any) -> dict[str, Any]:
        return {
            "location": "eastus",
            "tags": {"a": "b"},
            "identity": {"type": "SystemAssigned, UserAssigned", "userAssignedIdentities": {self.identity: {}}},
            "zones": ["1"],
            "properties": {
                "hardwareProfile": {"vmSize": "Standard_NC4as_T4_v3"},
                "storageProfile": {
                    "imageReference": dict(GENERATION_2),
                    "osDisk": {
                        "name": self.name("os"),
                        "createOption": "FromImage",
                        "caching": "ReadWrite",
                        "managedDisk": {"storageAccountType": "Standard_LRS"},
                    },
                    "dataDisks": [{"lun": 0, "createOption": "Empty", "diskSizeGB": 64, "name": self.name("data")}],
                },
                "osProfile": {
                    "computerName": "vm",
                    "adminUsername": "ada",
                    "linuxConfiguration": {
                        "disablePasswordAuthentication": True,
                        "ssh": {"publicKeys": [{"path": "/home/ada/.ssh/authorized_keys", "keyData": KEY}]},
                    },
                },
                "networkProfile": {"networkInterfaces": [{"id": interface, "properties": {"primary": True}}]},
                "diagnosticsProfile": {"bootDiagnostics": {"enabled": True}},
                **properties,
            },
        }

    def make_machine(self, interface: str = "", **properties: Any) -> str:
        body = self.machine_body(interface or self.make_interface(), **properties)
        return self.made("PUT", f"{self.compute}/virtualMachines/{self.name('vm')}", body)

    def make_spot(self) -> str:
        return self.make_machine(priority="Spot", evictionPolicy="Deallocate", billingProfile={"maxPrice": -1})

    def on_new_machine(self, method: str, verb: str = "", body: Any = None) -> Answer:
        machine = self.make_machine()
        answer = self.ask(method, f"{machine}{verb}", body)
        if not verb.startswith("/simulate"):
            self.ask("DELETE", machine)
        return answer

    def put_again(self, path: str) -> Answer:
        """The same resource once more, as a client sends back what it has read."""
        _, _, body = self.ask("GET", path)
        return self.ask("PUT", path, body)

    def os_disk(self) -> str:
        _, _, body = self.ask("GET", self.machine)
        return str(body["properties"]["storageProfile"]["osDisk"]["managedDisk"]["id"])

    def principal(self) -> str:
        _, _, body = self.ask("GET", self.machine)
        return str(body["identity"]["principalId"])

    def next_subnet(self) -> str:
        return f"10.0.{16 + next(self.numbers) % 200}.0/24"

    def next_priority(self) -> int:
        return 300 + next(self.numbers)

    def offers(self) -> str:
        return f"{self.subscription}/providers/Microsoft.Compute/locations/eastus"

    def terms(self, plan: str) -> str:
        return f"{self.subscription}/providers/Microsoft.MarketplaceOrdering/offerTypes/virtualmachine/{plan}"

    def put_schedule(self) -> Answer:
        path = (
            f"{self.group}/providers/Microsoft.DevTestLab/schedules/shutdown-computevm-{self.machine.rsplit('/', 1)[1]}"
        )
        self.ask("DELETE", path)
        return self.ask("PUT", path, self.schedule_body())

    def delete_schedule(self) -> Answer:
        _, _, body = self.put_schedule()
        return self.ask("DELETE", body["id"])

    def run_command(self, header: str) -> Answer:
        """A command in a guest that is up, asked after once it is done."""
        machine = self.machine
        answer = self.ask("POST", f"{machine}/runCommand", {"commandId": "RunShellScript", "script": ["echo hello"]})
        wait_until(lambda: self.follow(answer, "azure-asyncoperation")[2]["status"] != "InProgress")
        return self.follow(answer, header)

    def wait_for_guest(self, machine: str) -> None:
        ready = self.sandbox.server.cloud.guests_ready
        wait_until(lambda: machine.lower() in ready, "the guest did not boot")

    # Operations

    def follow(self, answer: Answer, header: str) -> Answer:
        """Ask where an answer says to ask."""
        url = answer[1][header]
        return self.sandbox.http("GET", url.removeprefix(self.sandbox.endpoint))

    def slowly(self, action: Callable[[], Answer]) -> Answer:
        """Do it in a world where things take time."""
        self.sandbox.control("POST", "profile", {"profile": "realistic"})
        try:
            return action()
        finally:
            self.sandbox.control("POST", "profile", {"profile": "instant"})

    def role_assignment(self, scope: str, principal: str) -> Answer:
        definitions = f"{self.subscription}/providers/Microsoft.Authorization/roleDefinitions"
        reader = f"{definitions}/acdd72a7-3385-48ef-bd42-f606fba81ae7"
        body = {
            "properties": {"roleDefinitionId": reader, "principalId": principal, "principalType": "ServicePrincipal"}
        }
        return self.ask("PUT", f"{scope}/providers/Microsoft.Authorization/roleAssignments/{uuid.uuid4()}", body)

    def schedule_body(self) -> dict[str, Any]:
        return {
            "location": "eastus",
            "properties": {
                "status": "Enabled",
                "taskType": "ComputeVmShutdownTask",
                "dailyRecurrence": {"time": "1900"},
                "timeZoneId": "UTC",
                "notificationSettings": {
                    "status": "Disabled",
                    "timeInMinutes": 30,
                    "notificationLocale": "en",
                    "emailRecipient": "me@example.com",
                    "webhookUrl": "https://example.com/hook",
                },
                "targetResourceId": self.machine,
            },
        }

    def deployment_body(self) -> dict[str, Any]:
        network = {
            "type": "Microsoft.Network/virtualNetworks",
            "name": self.name("deployed"),
            "apiVersion": "2022-01-01",
            "location": "eastus",
            "dependsOn": [],
            "properties": self.network_body()["properties"],
        }
        address = {
            "type": "Microsoft.Network/publicIPAddresses",
            "name": self.name("deployed"),
            "apiVersion": "2022-01-01",
            "location": "eastus",
            "dependsOn": [f"Microsoft.Network/virtualNetworks/{network['name']}"],
            "sku": {"name": "Standard"},
            "properties": {"publicIPAllocationMethod": "Static"},
        }
        template = {
            "$schema": "https://schema.management.azure.com/schemas/2015-01-01/deploymentTemplate.json#",
            "contentVersion": "1.0.0.0",
            "parameters": {"adminPassword": {"type": "securestring"}},
            "resources": [network, address],
            "outputs": {"VNet": {"type": "string", "value": network["name"]}},
        }
        parameters = {"adminPassword": {"value": "Correct-horse-1"}}
        return {"properties": {"mode": "incremental", "template": template, "parameters": parameters}}
