"""A spec whose group or subscription was changed describes another machine: the one that is on is not called off."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from gpuinfra.ledger.ledger import Ledger
from gpuinfra.models.entry import Entry, EntryKind
from gpuinfra.workspace import state_folder
from tests.e2e.azure import Azure
from tests.e2e.run_help import project, runs_of, state_of_job
from tests.e2e.user import User

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


@pytest.mark.parametrize("words", [["my-dsvm"], ["my-dsvm", "--delete", "--yes"], ["gpu.yaml"]])
def test_down_does_not_call_a_machine_off_that_is_on_in_another_group(
    moved: User, azure: Azure, words: list[str]
) -> None:
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


def test_machine_that_is_off_in_another_group_is_not_called_gone(moved: User, azure: Azure) -> None:
    moved.spec(**TARGET)
    moved.down("my-dsvm")
    moved.spec(resourceGroup="team-rg", **TARGET)
    receipt = moved.down("my-dsvm")
    assert (receipt["off"], receipt["existed"]) == (True, False)


def test_down_does_not_call_a_machine_off_that_is_on_in_another_subscription(user: User, azure: Azure) -> None:
    at = datetime(2026, 11, 1, tzinfo=UTC)
    entry = Entry(EntryKind.ON, at, "my-dsvm", "gpuinfra-my-dsvm", subscription=OTHER_SUBSCRIPTION, simulated=True)
    Ledger(state_folder(user.workspace)).add(entry)
    assert user("runs", GPUINFRA_TRUST_STATE="1").returncode == 0
    done = user("down", "my-dsvm", "--json")
    assert done.returncode == 4, done.stdout + done.stderr
    (receipt,) = json.loads(done.stdout)["receipts"]
    assert (receipt["off"], receipt["existed"]) == (False, False)
    assert OTHER_SUBSCRIPTION in receipt["left"][0]


@pytest.mark.parametrize("command", ["status", "doctor"])
def test_status_and_doctor_name_the_group_in_which_it_is(moved: User, azure: Azure, command: str) -> None:
    done = moved(command, "my-dsvm")
    assert done.returncode in {0, 1}, done.stderr
    said = done.stdout + done.stderr
    assert "gpuinfra-my-dsvm" in said
    assert "creates it" not in said
