"""A machine that has lost its tags is still billed: every command says so, and `up --adopt` takes it back."""

import json

import pytest

from tests.e2e.azure import Azure
from tests.e2e.foreign import make_group, make_machine
from tests.e2e.user import PARTS, User
from tests.variants import variant, variants

MACHINE = "Microsoft.Compute/virtualMachines"
ON, OFF = "PowerState/running", "PowerState/deallocated"


@pytest.fixture
def untagged(user: User, azure: Azure) -> User:
    """The user of a machine that is on and has lost its tags."""
    user.up()
    untag(azure)
    return user


def untag(azure: Azure) -> None:
    status, answer = azure.send("PATCH", azure.id(MACHINE, "my-dsvm"), {"tags": {}})
    assert status in {200, 202}, answer
    assert not azure.machine().get("tags")


def test_down_says_that_an_untagged_machine_is_on(untagged: User, azure: Azure) -> None:
    before = azure.last_request()
    for words in [["my-dsvm"], ["gpu.yaml"], ["my-dsvm", "--delete", "--yes"]]:
        problem = untagged.fails("down", *words, code="untagged-machine", exit_code=4)
        assert problem["summary"] == "machine exists, untagged, ON"
        assert "gpuinfra up --adopt" in problem["help"]
        assert azure.writes(before) == []
        assert azure.machine()["powerState"] == ON
        assert azure.everything() == PARTS, "most of all the shutdown schedule"


def test_down_without_a_spec_finds_an_untagged_machine_in_its_own_group(user: User, azure: Azure) -> None:
    user.spec(resourceGroup="team")
    user.up()
    azure.send("PATCH", azure.id(MACHINE, "my-dsvm", "team"), {"tags": {}})
    (user.workspace / "gpu.yaml").unlink()
    problem = user.fails("down", "my-dsvm", code="untagged-machine", exit_code=4)
    assert "team" in problem["note"]


@pytest.mark.parametrize("command", variants("lease", "ssh"))
def test_other_commands_say_that_a_machine_is_untagged(untagged: User, command: str) -> None:
    untagged.fails(command, "my-dsvm", code="untagged-machine", exit_code=4)


def test_status_shows_a_machine_that_has_the_tag_of_another(user: User, azure: Azure) -> None:
    user.up()
    azure.send("PATCH", azure.id(MACHINE, "my-dsvm"), {"tags": {"gpuinfra:name": "other"}})
    (machine,) = user.does("status")["machines"]
    assert (machine["name"], machine["powerState"], machine["tagged"]) == ("my-dsvm", "running", False)
    assert machine["costUsd"] is not None


def test_status_shows_an_untagged_machine(untagged: User) -> None:
    (machine,) = untagged.does("status")["machines"]
    assert (machine["name"], machine["powerState"], machine["tagged"]) == ("my-dsvm", "running", False)
    assert any("untagged" in each for each in machine["drift"])
    (named,) = untagged.does("status", "my-dsvm")["machines"]
    assert named["tagged"] is False


@variant
def test_doctor_reports_an_untagged_machine(untagged: User) -> None:
    done = untagged("doctor", "my-dsvm", "--json")
    assert done.returncode == 1
    (machine,) = json.loads(done.stdout)["machines"]
    (check,) = (each for each in machine["checks"] if each["name"] == "tags")
    assert check["verdict"] == "problem"
    assert "gpuinfra up --adopt" in check["fix"]


def test_reap_reports_an_untagged_machine_and_ends_with_4(untagged: User, azure: Azure) -> None:
    before = azure.last_request()
    done = untagged("reap", "--json")
    assert done.returncode == 4, done.stdout + done.stderr
    (found,) = json.loads(done.stdout)["untagged"]
    assert (found["name"], found["powerState"]) == ("my-dsvm", "running")
    assert azure.writes(before) == []
    assert "untagged" in untagged("reap").stdout


def test_up_does_not_touch_an_untagged_machine_and_names_the_command_that_adopts_it(
    untagged: User, azure: Azure
) -> None:
    before = azure.last_request()
    problem = untagged.fails("up", "gpu.yaml", code="untagged-machine", exit_code=4)
    assert "`gpuinfra up --adopt" in problem["help"]
    asked = untagged.fails("up", "--adopt", "gpu.yaml", code="needs-consent", exit_code=2)
    assert "--yes" in asked["help"]
    assert azure.writes(before) == []


@variant
def test_up_adopts_an_untagged_machine(user: User, azure: Azure) -> None:
    target = user.up()["target"]
    tags, vm = azure.machine()["tags"], azure.machine()["properties"]["vmId"]
    untag(azure)
    brought = user.up("--adopt", "--yes")
    assert azure.machine()["properties"]["vmId"] == vm
    kept = {"gpuinfra:name", "gpuinfra:spec-digest", "gpuinfra:terms", "gpuinfra:host-key", "gpuinfra:target"}
    assert {name: azure.machine()["tags"][name] for name in kept} == {name: tags[name] for name in kept}
    assert azure.machine()["tags"]["gpuinfra:lease-until"] == brought["leaseUntil"]
    assert brought["target"] == target
    assert user.down("my-dsvm")["verifiedBy"] == OFF


def test_machine_without_any_tags_is_adopted_with_all_resources(user: User, azure: Azure) -> None:
    user.up()
    for body in azure.bodies():
        status, answer = azure.send("PATCH", body["id"], {"tags": {}})
        assert status in {200, 202}, (body["id"], answer)
    user.fails("down", "my-dsvm", "--delete", "--yes", code="untagged-machine", exit_code=4)
    user.up("--adopt", "--yes")
    user.down("my-dsvm", "--delete", "--yes")
    assert azure.everything() == []


def test_adopt_changes_nothing_if_another_machine_has_the_name(untagged: User, azure: Azure) -> None:
    make_group(azure, "team")
    make_machine(azure, "team", "my-dsvm", {"gpuinfra:name": "my-dsvm"}, like_ours=True)
    before = azure.last_request()
    assert "`team`" in untagged.fails("up", "--adopt", "--yes", "gpu.yaml", code="name-taken")["note"]
    assert azure.writes(before) == []


def test_adopt_changes_nothing_if_a_resource_belongs_to_another_machine(untagged: User, azure: Azure) -> None:
    nsg = azure.id("Microsoft.Network/networkSecurityGroups", "my-dsvm-nsg")
    azure.send("PATCH", nsg, {"tags": {"gpuinfra:name": "other"}})
    before = azure.last_request()
    problem = untagged.fails("up", "--adopt", "--yes", "gpu.yaml", code="name-taken")
    assert "my-dsvm-nsg" in problem["note"]
    assert "--adopt" not in problem["help"]
    assert azure.writes(before) == []
