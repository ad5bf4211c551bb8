"""The real `az` program against the embedded Azure."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.az import Az
from tests.integration.sandbox.servers import Sandbox, Servers
from tests.variants import variant


@pytest.fixture(scope="module")
def cloud(servers: Servers) -> Iterator[Sandbox]:
    with servers.lend() as lent:
        yield lent


@pytest.fixture(scope="module")
def az(cloud: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Az:
    """`az` logged in to the sandbox."""
    folder = tmp_path_factory.mktemp("az-home")
    program = Az(folder, endpoint=cloud.endpoint, authority_file=str(cloud.server.authority_file))
    setting = cloud.server.cloud.store.setting
    subscription = program.login(tenant=setting("tenant"), client=setting("client-id"), secret=setting("client-secret"))
    assert subscription["id"] == cloud.subscription
    return program


@variant
def test_az_manages_resource_groups(az: Az) -> None:
    assert (
        az("group", "create", "-n", "az-groups", "-l", "southcentralus")["properties"]["provisioningState"]
        == "Succeeded"
    )
    assert az("group", "show", "-n", "AZ-groups")["name"] == "az-groups"
    assert "az-groups" in [group["name"] for group in az("group", "list")]
    az("group", "delete", "-n", "az-groups", "--yes")
    az("group", "show", "-n", "az-groups", fails="ResourceGroupNotFound")


@variant
def test_az_lists_sizes_images_and_quota(az: Az) -> None:
    usage = {each["name"]["value"]: each for each in az("vm", "list-usage", "-l", "southcentralus")}
    assert usage["Standard NCASv3_T4 Family"]["currentValue"] in {0, "0"}
    skus = az("vm", "list-skus", "-l", "southcentralus", "--size", "Standard_NC", "--all")
    assert "Standard_NC4as_T4_v3" in [sku["name"] for sku in skus]
    image = az("vm", "image", "show", "-l", "southcentralus", "--urn", "microsoft-dsvm:ubuntu-2204:2204-gen2:latest")
    assert image["hyperVGeneration"] == "V2"


@variant
def test_az_creates_uses_and_deletes_a_vm(az: Az, cloud: Sandbox, tmp_path: Path) -> None:
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=30)
    group = ("-g", "az-life")
    az("group", "create", "-n", "az-life", "-l", "southcentralus")
    made = az(
        *("vm", "create", *group, "-n", "dsvm", "--size", "Standard_NC4as_T4_v3", "--admin-username", "azureuser"),
        *("--image", "microsoft-dsvm:ubuntu-2204:2204-gen2:latest", "--ssh-key-values", f"{key}.pub"),
        *("--security-type", "Standard", "--nsg-rule", "SSH", "--public-ip-sku", "Standard"),
    )
    assert made["powerState"] == "VM running"
    assert made["publicIpAddress"].startswith("127.")
    (listed,) = az("vm", "list", "-d", *group)
    assert (listed["name"], listed["powerState"]) == ("dsvm", "VM running")
    (nsg,) = az("network", "nsg", "list", *group)
    rules = az("network", "nsg", "rule", "list", *group, "--nsg-name", nsg["name"])
    assert [rule["destinationPortRange"] for rule in rules] == ["22"]
    machine = (*group, "-n", "dsvm")
    az("vm", "auto-shutdown", *machine, "--time", "1900")
    az("vm", "deallocate", *machine)
    assert az("vm", "show", "-d", *machine)["powerState"] == "VM deallocated"
    az("vm", "start", *machine)
    az("vm", "stop", *machine)
    assert az("vm", "show", "-d", *machine)["powerState"] == "VM stopped"
    (billed,) = [each for each in cloud.control("GET", "bill")["machines"] if each["name"] == "dsvm"]
    assert [state["state"] for state in billed["timeline"]][-1] == "stopped"
    az("vm", "auto-shutdown", *machine, "--off")
    of_vm = ("-g", "az-life", "--resource-type", "Microsoft.Compute/virtualMachines", "--resource", "dsvm")
    lock = az("lock", "create", "-n", "keep", "--lock-type", "ReadOnly", *of_vm)
    assert [each["id"] for each in az("lock", "list", "-g", "az-life")] == [lock["id"]]
    az("vm", "deallocate", *machine, fails="ScopeLocked")
    az("lock", "delete", "--ids", lock["id"])
    az("vm", "delete", *machine, "--yes")
    az("vm", "show", *machine, fails="ResourceNotFound")
    az("group", "delete", "-n", "az-life", "--yes")
    assert "az-life" not in [each["name"] for each in az("group", "list")]
