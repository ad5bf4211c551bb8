"""A tagged machine whose NIC or disk was replaced is not changed, but every command says that it is there and why."""

import json
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.foreign import INTERFACES, MACHINE
from tests.e2e.user import REGION, User
from tests.variants import variant, variants

GROUP = "team"
ON = "PowerState/running"
REASON = "its NIC is not `my-dsvm-nic`"
AZ = "az vm deallocate --resource-group team --name my-dsvm"


@pytest.fixture
def replaced(user: User, azure: Azure) -> User:
    """The user of a running machine in a named group whose NIC was replaced in the portal."""
    user.spec(resourceGroup=GROUP)
    user.up()
    act(azure, "deallocate")
    subnet = azure.part(INTERFACES, "my-dsvm-nic", GROUP)["properties"]["ipConfigurations"][0]["properties"]["subnet"]
    new = azure.id(INTERFACES, "portal-nic", GROUP)
    configuration = {"name": "primary", "properties": {"subnet": {"id": subnet["id"]}}}
    azure.put(new, {"location": REGION, "properties": {"ipConfigurations": [configuration]}})
    nics: dict[str, Any] = {"networkInterfaces": [{"id": new, "properties": {"primary": True}}]}
    status, answer = azure.send("PATCH", azure.id(MACHINE, "my-dsvm", GROUP), {"properties": {"networkProfile": nics}})
    assert status in {200, 202}, answer
    act(azure, "start")
    assert azure.machine(group=GROUP)["powerState"] == ON
    return user


def act(azure: Azure, verb: str) -> None:
    status, answer = azure.send("POST", f"{azure.id(MACHINE, 'my-dsvm', GROUP)}/{verb}")
    assert status in {200, 202}, answer


def test_reap_reports_a_machine_that_it_does_not_recognise_and_ends_with_4(replaced: User, azure: Azure) -> None:
    before = azure.last_request()
    done = replaced("reap", "--json")
    assert done.returncode == 4, done.stdout + done.stderr
    (found,) = json.loads(done.stdout)["unrecognised"]
    assert (found["name"], found["resourceGroup"], found["powerState"]) == ("my-dsvm", GROUP, "running")
    assert found["reason"] == REASON
    assert azure.writes(before) == []
    said = replaced("reap").stdout
    assert all(words in said for words in ("UNRECOGNISED", REASON, AZ, "1 unrecognised and billed")), said
    assert "nothing to do" not in said


@pytest.mark.parametrize("has_spec", variants(True, False))
def test_down_says_why_a_machine_is_not_recognised(replaced: User, azure: Azure, has_spec: bool) -> None:
    if not has_spec:
        (replaced.workspace / "gpu.yaml").unlink()
    problem = replaced.fails("down", "my-dsvm", code="untagged-machine", exit_code=4)
    assert problem["summary"] == "machine exists, not recognised, ON"
    assert REASON in problem["note"]
    assert AZ in problem["help"]
    assert "--adopt" not in problem["help"], "it would be refused"
    assert azure.machine(group=GROUP)["powerState"] == ON


def test_up_says_why_a_machine_is_not_recognised(replaced: User, azure: Azure) -> None:
    before = azure.last_request()
    for words in [["plan"], ["up"], ["up", "--adopt", "--yes"]]:
        problem = replaced.fails(*words, "gpu.yaml", code="untagged-machine", exit_code=4)
        assert REASON in problem["note"]
        assert azure.writes(before) == []


@variant
def test_doctor_says_why_a_machine_is_not_recognised(replaced: User) -> None:
    done = replaced("doctor", "my-dsvm", "--json")
    assert done.returncode == 1, done.stdout
    (machine,) = json.loads(done.stdout)["machines"]
    (check,) = machine["checks"]
    assert (check["name"], check["verdict"]) == ("tags", "problem")
    assert REASON in check["seen"]
    assert AZ in check["fix"]


@variant
def test_changed_group_does_not_hide_a_machine_that_is_not_recognised(replaced: User, azure: Azure) -> None:
    replaced.spec()
    done = replaced("down", "gpu.yaml", "--json")
    assert done.returncode == 4, done.stdout + done.stderr
    (receipt,) = json.loads(done.stdout)["receipts"]
    assert receipt["off"] is False
    assert any(AZ in line for line in receipt["left"]), receipt
    assert "`team`" in replaced.fails("up", "gpu.yaml", code="name-taken")["note"]


def test_status_says_why_a_machine_is_not_recognised(replaced: User) -> None:
    done = replaced("status", "--json")
    (line,) = (line for line in json.loads(done.stdout)["leftAlone"] if line.startswith("vm my-dsvm"))
    assert REASON in line
