"""Receipts of `reap` and of an `up` that was not ready: the cost is what the embedded Azure bills, to the cent."""

import json
import sqlite3
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.user import SIZE, User

MACHINES = "Microsoft.Compute/virtualMachines"


def advance(azure: Azure, seconds: float) -> None:
    azure.control("POST", "clock", {"advance": seconds})


def act(azure: Azure, verb: str) -> None:
    """As a person does in the portal."""
    status, body = azure.send("POST", f"{azure.id(MACHINES, 'my-dsvm')}/{verb}")
    assert status == 202, body


def bill(azure: Azure) -> float:
    return float(sum(each["costUsd"] for each in azure.bill()))


@pytest.mark.parametrize("folder", ["its own workspace", "an empty folder"])
def test_receipt_of_reap_is_what_azure_bills_for_the_last_time_on(user: User, azure: Azure, folder: str) -> None:
    user.spec(lifecycle={"lease": "20h", "idle": "19h"})
    user.up()
    act(azure, "deallocate")
    before = bill(azure)
    advance(azure, 10 * 3600)
    act(azure, "start")
    # Neither Azure's schedule nor the guest ends it first.
    azure.fault("InternalServerError", method="POST", type="virtualMachines", count=0)
    advance(azure, 11 * 3600)
    azure.clear_faults()
    if folder != "its own workspace":
        user.workspace = user.workspace.parent / "cron"
        user.workspace.mkdir()
    done = user("reap", "--json")
    assert done.returncode == 0, done.stderr
    (stopped,) = json.loads(done.stdout)["stopped"]
    assert stopped["costUsd"] == pytest.approx(bill(azure) - before, abs=0.005)
    assert stopped["billedSeconds"] == pytest.approx(11 * 3600, abs=60)
