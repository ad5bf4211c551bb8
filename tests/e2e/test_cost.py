"""`cost` by the installed program: from Azure's activity log and from the workspace's ledger."""

import csv
import io
import json
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.foreign import make_address, make_disk, make_group
from tests.e2e.user import REGION, SIZE, User
from tests.variants import variant

MINUTES = 600.0
"""Shorter than the idle window."""


def row(found: dict[str, Any]) -> dict[str, Any]:
    (only,) = found["cost"]["rows"]
    return dict(only)


@variant
def test_cost_of_a_machine_from_creation_to_deletion_matches_the_bill(user: User, azure: Azure) -> None:
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

    # Without the log, the ledger counts.
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
    assert afterwards["computeUsd"] == spent["computeUsd"], "the ledger still has it"


def test_cost_counts_a_machine_that_was_deallocated_in_the_portal(user: User, azure: Azure) -> None:
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
    # From now on it is recorded.
    again = user.down("my-dsvm")
    assert (again["cause"], again["costUsd"]) == ("it was off already", None)


def test_cost_by_tag_needs_a_tag(user: User) -> None:
    user.fails("cost", "--by", "tag", code="usage", exit_code=2)


def test_cost_leaves_out_disks_and_addresses_of_others_with_our_tag(user: User, azure: Azure) -> None:
    user.spec()
    user.up()
    make_group(azure, "other")
    for name in ("zeta", "my-dsvm"):
        make_disk(azure, "other", f"{name}-disk", {"gpuinfra:name": name})
        make_address(azure, "other", f"{name}-ip", {"gpuinfra:name": name})
    azure.control("POST", "clock", {"advance": 86_400})
    done = user("cost", "--json")
    assert row(json.loads(done.stdout))["label"] == "my-dsvm"
    for part in ("disk zeta-disk", "disk my-dsvm-disk", "public-ip zeta-ip", "public-ip my-dsvm-ip"):
        assert f"{part} in group other: it has the tag of" in done.stderr
