"""`status` and `doctor` report a machine that others opened to the network."""

import json

from tests.az import Az
from tests.e2e.azure import GROUP, Azure
from tests.e2e.user import User

NSG = ("Microsoft.Network/networkSecurityGroups", "my-dsvm-nsg")
NIC = ("Microsoft.Network/networkInterfaces", "my-dsvm-nic")
OPENED = "NSG rule everything opens every port to every address"
NO_NSG = "its NIC has no NSG"


def exposures(user: User) -> tuple[list[str], tuple[str, str]]:
    """Return the drift that `status` shows, and what `doctor` says about the network."""
    (machine,) = user.does("status")["machines"]
    (examined,) = json.loads(user("doctor", "my-dsvm", "--json").stdout)["machines"]
    (check,) = [each for each in examined["checks"] if each["name"] == "network"]
    return machine["drift"], (check["verdict"], check["seen"])


def test_status_and_doctor_report_what_others_opened(user: User, azure: Azure, az: Az) -> None:
    user.spec(target={"type": "remote"})
    user.up()
    assert exposures(user) == ([], ("ok", "its NSG opens only SSH"))

    rule = ("--name", "everything", "--priority", "200", "--access", "Allow", "--direction", "Inbound")
    anything = ("--protocol", "*", "--source-address-prefixes", "*", "--destination-port-ranges", "*")
    az("network", "nsg", "rule", "create", "--resource-group", GROUP, "--nsg-name", NSG[1], *rule, *anything)
    assert exposures(user) == ([OPENED], ("problem", OPENED))
    shown = user("status")
    assert f"my-dsvm: {OPENED}" in shown.stdout
    assert "`gpuinfra up SPEC` restores the NSG" in user("doctor", "my-dsvm").stdout

    az("network", "nic", "update", "--resource-group", GROUP, "--name", NIC[1], "--remove", "networkSecurityGroup")
    assert "networkSecurityGroup" not in azure.part(*NIC)["properties"]
    assert exposures(user) == ([NO_NSG], ("problem", NO_NSG))
    (user.workspace / "gpu.yaml").unlink()
    assert exposures(user) == ([NO_NSG], ("problem", NO_NSG)), "also without a spec"
    user.spec(target={"type": "remote"})
    user.up()
    assert exposures(user) == ([], ("ok", "its NSG opens only SSH"))

    azure.fault("AuthorizationFailed", type="networkSecurityGroups", method="GET", count=0)
    found = user.does("status")
    assert found["notes"] == ["NSGs were not compared: AuthorizationFailed"], "and the machine is shown"
    assert found["machines"][0]["drift"] == []
