"""`cost` by the installed program: what machines have cost, by Azure's log and by the workspace's own ledger."""

import csv
import io
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.user import REGION, SIZE, User

MINUTES = 600.0
"""Not so long that the machine takes itself for idle."""


def row(found: dict[str, Any]) -> dict[str, Any]:
    (only,) = found["cost"]["rows"]
    return dict(only)


def test_a_machine_from_its_first_start_to_its_end(user: User, azure: Azure) -> None:
    user.spec(tags={"project": "mnist"})
    user.up()
    azure.control("POST", "clock", {"advance": MINUTES})
    receipt = user.down("my-dsvm")
    (billed,) = azure.bill()
    assert receipt["cause"] == "gpuinfra down"
    assert receipt["removeCommand"] == "gpuinfra down my-dsvm --delete --sandbox"
    assert receipt["savesPerDayUsd"] == pytest.approx(0.631 * 24)
    assert 0 < receipt["leftOn"]["costUsd"] <= 24 * 0.631, "until the next eight o'clock"

    azure.control("POST", "clock", {"advance": 86_400})
    found = user.does("cost")
    spent = row(found)
    assert spent["onSeconds"] == pytest.approx(billed["billedSeconds"], abs=1)
    assert spent["computeUsd"] == pytest.approx(billed["costUsd"], abs=0.001)
    assert (spent["label"], spent["size"], spent["region"]) == ("my-dsvm", SIZE, REGION)
    assert (spent["sources"], spent["sure"], spent["on"]) == (["activity log"], "exact", False)
    assert spent["diskUsd"] == pytest.approx(19.2 / 30.4, rel=0.02), "a day and some minutes of a month"
    assert spent["savedUsd"] == pytest.approx(24 * 0.631, rel=0.02)
    assert found["cost"]["activityLog"]["state"] == "read"
    assert found["cost"]["prices"] == ["recorded when the machine was switched on"]

    table = user("cost", "--csv", "--tag", "Project", "--since", "12h")
    (line,) = csv.DictReader(io.StringIO(table.stdout))
    assert (line["label"], line["onSeconds"]) == ("mnist", "0.0")

    # Without the log there is what was written down here.
    azure.fault("AuthorizationFailed", type="values", count=0)
    denied = user.does("cost", "--by", "run")
    azure.clear_faults()
    assert denied["cost"]["activityLog"] == {"state": "not allowed", "since": None}
    recorded = row(denied)
    assert (recorded["label"], recorded["sources"], recorded["sure"]) == ("my-dsvm (idle)", ["ledger"], "recorded")
    assert recorded["onSeconds"] == receipt["billedSeconds"]

    gone = user.down("my-dsvm", "--delete", "--yes")
    assert (gone["off"], gone["cause"]) == (True, "it was off already")
    afterwards = row(user.does("cost"))
    assert afterwards["computeUsd"] == spent["computeUsd"], "it is gone, and remembered"


def test_a_machine_that_somebody_else_switched_off_is_accounted_for(user: User, azure: Azure) -> None:
    user.up()
    azure.control("POST", "clock", {"advance": MINUTES})
    status, _ = azure.send("POST", f"{azure.id('Microsoft.Compute/virtualMachines', 'my-dsvm')}/deallocate")
    assert status == 202
    azure.control("POST", "clock", {"advance": 3600})
    receipt = user.down("my-dsvm")
    (billed,) = azure.bill()
    assert receipt["cause"].endswith(", by Azure's log")
    assert receipt["billedSeconds"] == pytest.approx(billed["billedSeconds"], abs=1)
    assert receipt["costUsd"] == pytest.approx(billed["costUsd"], abs=0.001)
    # From now on it is written down.
    again = user.down("my-dsvm")
    assert (again["cause"], again["costUsd"]) == ("it was off already", None)


def test_what_cannot_be_meant_is_said(user: User) -> None:
    user.fails("cost", "--by", "tag", code="usage", exit_code=2)
