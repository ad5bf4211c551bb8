"""What others create under the names of a machine while `up` creates it is not changed, and its owner keeps it."""

import pytest

from tests.e2e.azure import GROUP, Azure
from tests.e2e.foreign import INTERFACES, make_group, make_machine
from tests.e2e.run_help import Start
from tests.e2e.user import REGION, User

ON = "PowerState/running"


@pytest.mark.parametrize("group", [GROUP, "team"])
def test_up_does_not_schedule_the_end_of_a_machine_of_others(
    user: User, azure: Azure, start: Start, group: str
) -> None:
    make_group(azure, group)
    user.spec(resourceGroup=group)
    azure.fault("hold-before", method="PUT", type="virtualMachines")
    client = start("up", "gpu.yaml")
    client.until_held()
    make_machine(azure, group, "my-dsvm", {"owner": "bob"})
    azure.clear_faults()
    assert client.end() == 1, client.said
    assert "the name is taken" in client.err
    assert "vm my-dsvm" in client.err
    assert "it was not changed" in client.err
    assert not [each for each in azure.everything() if each.startswith("schedules/")]
    assert azure.machine(group=group)["tags"] == {"owner": "bob"}
    azure.control("POST", "clock", {"advance": 48 * 3600})
    assert azure.machine(group=group)["powerState"] == ON


def test_up_does_not_change_a_nic_of_others(user: User, azure: Azure, start: Start) -> None:
    make_group(azure, "team")
    user.spec(resourceGroup="team")
    azure.fault("hold-before", method="PUT", type="networkInterfaces")
    client = start("up", "gpu.yaml")
    client.until_held()
    network = azure.id("Microsoft.Network/virtualNetworks", "bobs-net", "team")
    subnet = {"name": "inner", "properties": {"addressPrefix": "10.7.0.0/24"}}
    spaces = {"addressSpace": {"addressPrefixes": ["10.7.0.0/16"]}, "subnets": [subnet]}
    azure.put(network, {"location": REGION, "properties": spaces})
    inner = {"subnet": {"id": f"{network}/subnets/inner"}}
    configuration = {"ipConfigurations": [{"name": "first", "properties": inner}]}
    nic = azure.id(INTERFACES, "my-dsvm-nic", "team")
    azure.put(nic, {"location": REGION, "tags": {"owner": "bob"}, "properties": configuration})
    theirs = azure.part(INTERFACES, "my-dsvm-nic", "team")
    azure.clear_faults()
    assert client.end() == 1, client.said
    assert "the name is taken" in client.err
    assert azure.part(INTERFACES, "my-dsvm-nic", "team") == theirs
    assert not azure.is_billed()
