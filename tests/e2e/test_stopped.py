"""A machine that is stopped but not deallocated is billed: every command says so, and `down` and `reap` end it."""

import json

import pytest

from tests.e2e.azure import Azure
from tests.e2e.foreign import MACHINE
from tests.e2e.user import User
from tests.variants import variant

OFF = "PowerState/deallocated"


@pytest.fixture
def stopped(user: User, azure: Azure) -> User:
    """The user of a machine that was stopped in the portal."""
    user.up()
    status, answer = azure.send("POST", f"{azure.id(MACHINE, 'my-dsvm')}/powerOff")
    assert status in {200, 202}, answer
    assert azure.machine()["powerState"] == "PowerState/stopped"
    return user


@variant
def test_status_says_that_a_stopped_machine_is_billed(stopped: User) -> None:
    (machine,) = stopped.does("status")["machines"]
    assert machine["powerState"] == "stopped"
    assert "stopped, but billed" in machine["drift"]


def test_down_ends_the_bill_of_a_stopped_machine(stopped: User, azure: Azure) -> None:
    receipt = stopped.down("my-dsvm")
    assert receipt["verifiedBy"] == OFF
    assert receipt["billedSeconds"] is not None
    assert azure.machine()["powerState"] == OFF


def test_plan_and_up_say_that_a_stopped_machine_is_billed(stopped: User, azure: Azure) -> None:
    assert any("stopped, but billed" in note for note in stopped.plan()["notes"])
    assert any("stopped, but billed" in note for note in stopped.up()["plan"]["notes"])
    assert azure.machine()["powerState"] == "PowerState/running"


def test_reap_says_that_a_stopped_machine_is_billed_and_ends_it(stopped: User, azure: Azure) -> None:
    first = stopped.does("reap")
    assert any("my-dsvm is stopped, but billed" in note for note in first["notes"])
    azure.control("POST", "clock", {"advance": 16 * 60})
    done = stopped("reap", "--json")
    (ended,) = json.loads(done.stdout)["stopped"]
    assert (ended["cause"], ended["verifiedBy"]) == ("stopped, but billed", OFF)
    assert not azure.is_billed()
