"""Deletion of a VM with its disks and NICs: what a client reads during and after it, also for a VM that stays."""

from typing import Any

import pytest
from azure.core.exceptions import ResourceNotFoundError

from tests.integration.sandbox.machine_help import SYSTEM, Place, error_of, settings
from tests.integration.sandbox.servers import Sandbox


class Pair:
    """Two machines of one network and one security group. With each go its interface, address and disk."""

    def __init__(self, server: Sandbox) -> None:
        self.place = Place(server, group="group")
        self.network, group = server.network, self.place.group
        rules: Any = {"location": "eastus", "properties": {"securityRules": []}}
        made: Any = self.network.network_security_groups.begin_create_or_update(group, "rules", rules).result()
        self.rules = str(made.id)
        for name in ("goes", "stays"):
            self._make(name)

    def _make(self, name: str) -> None:
        place, operations = self.place, self.network.network_interfaces
        place.interface(f"{name}-nic", f"{name}-ip")
        interface: Any = operations.get(place.group, f"{name}-nic").as_dict()
        interface["properties"]["networkSecurityGroup"] = {"id": self.rules}
        address = interface["properties"]["ipConfigurations"][0]["properties"]["publicIPAddress"]
        address["properties"] = {"deleteOption": "Delete"}
        kept: Any = operations.begin_create_or_update(place.group, f"{name}-nic", interface).result()
        network = {"networkInterfaces": [{"id": kept.id, "properties": {"primary": True, "deleteOption": "Delete"}}]}
        body = settings(place.body(name, networkProfile=network), f"{SYSTEM}.deleteOption", "Delete")
        place.put(name, settings(body, f"{SYSTEM}.name", f"{name}-disk"))

    def read(self, name: str) -> dict[str, Any]:
        """Everything of a machine, or the error that says that it is not there."""
        group, network = self.place.group, self.network
        asked = {
            "machine": lambda: self.place.machines.get(group, name, expand="instanceView"),
            "interface": lambda: network.network_interfaces.get(group, f"{name}-nic"),
            "address": lambda: network.public_ip_addresses.get(group, f"{name}-ip"),
            "disk": lambda: self.place.disks.get(group, f"{name}-disk"),
        }
        return {kind: _found(ask) for kind, ask in asked.items()}


def _found(ask: Any) -> Any:
    try:
        return ask()
    except ResourceNotFoundError as error:
        return error_of(error).code


@pytest.fixture
def pair(server: Sandbox) -> Pair:
    return Pair(server)


def test_vm_and_its_resources_disappear_together(pair: Pair) -> None:
    place = pair.place
    place.sandbox.control("POST", "profile", {"profile": "realistic"})
    assert place.sandbox.http("DELETE", place.path("goes"))[0] == 202
    during = pair.read("goes")
    machine = during["machine"]
    assert machine.provisioning_state == "Deleting"
    assert machine.instance_view.statuses[0].code == "ProvisioningState/deleting"
    assert during["interface"].virtual_machine.id == place.id("goes")
    assert during["address"].ip_address
    assert during["disk"].managed_by == place.id("goes")
    place.advance(600)
    assert set(pair.read("goes").values()) == {"ResourceNotFound"}
    assert pair.read("goes")["machine"] == "ResourceNotFound", "and stays so"


def test_shared_resources_stay_without_the_deleted_vm(pair: Pair) -> None:
    place, network = pair.place, pair.network
    place.machines.begin_delete(place.group, "goes").result()
    left = pair.read("stays")
    assert left["machine"].provisioning_state == "Succeeded"
    assert left["interface"].virtual_machine.id == place.id("stays")
    assert (left["address"].provisioning_state, left["disk"].disk_state) == ("Succeeded", "Attached")
    rules: Any = network.network_security_groups.get(place.group, "rules")
    space: Any = network.virtual_networks.get(place.group, "net")
    assert [each.id.rsplit("/", 1)[1] for each in rules.network_interfaces] == ["stays-nic"]
    assert len(space.subnets[0].ip_configurations) == 1
    place.machines.begin_delete(place.group, "stays").result()
    network.network_security_groups.begin_delete(place.group, "rules").result()
    network.virtual_networks.begin_delete(place.group, "net").result()
    for ask in (
        lambda: network.network_security_groups.get(place.group, "rules"),
        lambda: network.virtual_networks.get(place.group, "net"),
    ):
        assert _found(ask) == "ResourceNotFound"
    assert place.left() == set()


def test_failed_deletion_deletes_nothing(pair: Pair) -> None:
    place = pair.place
    place.fault("InternalExecutionError", type="virtualMachines", method="DELETE")
    place.sandbox.http("DELETE", place.path("goes"))
    found = pair.read("goes")
    assert found["machine"].provisioning_state == "Failed"
    assert "ResourceNotFound" not in found.values()
    place.machines.begin_delete(place.group, "goes").result()
    assert set(pair.read("goes").values()) == {"ResourceNotFound"}
