"""A spec with a changed group or subscription describes another machine; the running one is not reported as off."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuinfra.models.receipt import LedgerEntry, LedgerEntryKind
from gpuinfra.store import Ledger
from gpuinfra.workspace import state_folder
from tests.e2e.azure import Azure
from tests.e2e.foreign import MACHINE, make_group, make_machine
from tests.e2e.run_help import project, runs_of, state_of_job
from tests.e2e.user import User
from tests.variants import variant

ON = "PowerState/running"
OTHER_SUBSCRIPTION = "00000000-0000-0000-0000-00000000000a"
TARGET: dict[str, Any] = {"target": {"type": "remote"}, "lifecycle": {"lease": "2h"}}


@pytest.fixture
def moved(user: User) -> User:
    """The machine is on in its default group, and the spec names another group."""
    project(user)
    user.up()
    user.spec(resourceGroup="team-rg", **TARGET)
    return user


def test_down_does_not_report_off_while_the_machine_is_on_in_another_group(moved: User, azure: Azure) -> None:
    for words in [["my-dsvm"], ["my-dsvm", "--delete", "--yes"], ["gpu.yaml"]]:
        done = moved("down", *words, "--json")
        assert done.returncode == 4, done.stdout + done.stderr
        (receipt,) = json.loads(done.stdout)["receipts"]
        assert (receipt["off"], receipt["verifiedBy"]) == (False, None)
        assert any("gpuinfra-my-dsvm" in line and "running" in line for line in receipt["left"]), receipt
        assert azure.machine()["powerState"] == ON


def test_down_delete_keeps_runs_of_the_machine_in_the_other_group(moved: User, azure: Azure) -> None:
    done = moved("submit", "-c", "my_dsvm", "--detach", "waits.py")
    assert done.returncode == 0, done.stderr
    assert moved("down", "my-dsvm", "--delete", "--yes").returncode == 4
    (run,) = runs_of(moved)
    assert (run["state"], run["machine"]) == ("running", "my-dsvm")
    assert "ended" not in (state_of_job(azure, run["id"]) or {})


def test_machine_that_is_off_in_another_group_is_not_reported_as_deleted(moved: User, azure: Azure) -> None:
    moved.spec(**TARGET)
    moved.down("my-dsvm")
    moved.spec(resourceGroup="team-rg", **TARGET)
    receipt = moved.down("my-dsvm")
    assert (receipt["off"], receipt["existed"]) == (True, False)


@pytest.fixture
def moved_untagged(moved: User, azure: Azure) -> User:
    """Someone has also removed the tags of the running machine."""
    status, answer = azure.send("PATCH", azure.id(MACHINE, "my-dsvm"), {"tags": {}})
    assert status in {200, 202}, answer
    return moved


def test_down_does_not_report_off_while_an_untagged_machine_is_on_in_another_group(
    moved_untagged: User, azure: Azure
) -> None:
    for words in [["my-dsvm"], ["my-dsvm", "--delete", "--yes"], ["gpu.yaml"]]:
        done = moved_untagged("down", *words, "--json")
        assert done.returncode == 4, done.stdout + done.stderr
        (receipt,) = json.loads(done.stdout)["receipts"]
        assert (receipt["off"], receipt["verifiedBy"]) == (False, None)
        (line,) = receipt["left"]
        assert all(word in line for word in ("gpuinfra-my-dsvm", "running", "untagged", "`gpuinfra up --adopt SPEC`"))
        assert azure.machine()["powerState"] == ON


def test_no_second_machine_is_created_beside_an_untagged_one(moved_untagged: User, azure: Azure) -> None:
    before = azure.last_request()
    for command in ["plan", "up"]:
        problem = moved_untagged.fails(command, "gpu.yaml", code="name-taken")
        assert "`gpuinfra-my-dsvm`" in problem["note"]
        assert azure.writes(before) == []


@variant
def test_receipt_of_one_machine_names_a_tagged_one_of_its_name_that_is_on(user: User, azure: Azure) -> None:
    user.up()
    make_group(azure, "team-rg")
    make_machine(azure, "team-rg", "my-dsvm", {"gpuinfra:name": "my-dsvm"}, like_ours=True)
    receipt = user.down("gpu.yaml")
    assert any(line.startswith("vm my-dsvm in group team-rg, running") for line in receipt["kept"]), receipt


def test_receipt_of_one_machine_is_no_proof_while_an_untagged_one_of_its_name_is_on(user: User, azure: Azure) -> None:
    user.up()
    make_group(azure, "team-rg")
    make_machine(azure, "team-rg", "my-dsvm", {}, like_ours=True)
    done = user("down", "gpu.yaml", "--json")
    assert done.returncode == 4, done.stdout + done.stderr
    (receipt,) = json.loads(done.stdout)["receipts"]
    assert receipt["verifiedBy"] == "PowerState/deallocated"
    assert any("team-rg" in line and "running" in line for line in receipt["left"]), receipt
    assert azure.machine()["powerState"] == "PowerState/deallocated"
    assert azure.machine(group="team-rg")["powerState"] == ON
    assert "NOT ALL OFF" in user("down", "gpu.yaml").stdout


def test_down_does_not_report_off_while_the_machine_is_on_in_another_subscription(user: User, azure: Azure) -> None:
    at = datetime(2026, 11, 1, tzinfo=UTC)
    entry = LedgerEntry(
        LedgerEntryKind.ON, at, "my-dsvm", "gpuinfra-my-dsvm", subscription=OTHER_SUBSCRIPTION, simulated=True
    )
    Ledger(state_folder(user.workspace)).add(entry)
    assert user("runs", GPUINFRA_TRUST_STATE="1").returncode == 0
    done = user("down", "my-dsvm", "--json")
    assert done.returncode == 4, done.stdout + done.stderr
    (receipt,) = json.loads(done.stdout)["receipts"]
    assert (receipt["off"], receipt["existed"]) == (False, False)
    assert OTHER_SUBSCRIPTION in receipt["left"][0]


def test_status_and_doctor_name_the_group_of_the_machine(moved: User, azure: Azure) -> None:
    for command in ["status", "doctor"]:
        done = moved(command, "my-dsvm")
        assert done.returncode in {0, 1}, done.stderr
        said = done.stdout + done.stderr
        assert "gpuinfra-my-dsvm" in said
        assert "creates it" not in said
