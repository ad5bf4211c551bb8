"""Failover: the next candidate is tried, and the failed one is cleaned up."""

import json
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.user import LARGER_SIZE, OTHER_REGION, PARTS, REGION, SIZE, User
from tests.variants import variant, variants


def _places(azure: Azure) -> set[str]:
    return {body["location"] for body in azure.bodies()}


def _passed(brought: dict[str, Any]) -> list[tuple[str, str, list[str]]]:
    return [
        (each["region"], each["size"], [reason["code"] for reason in each["reasons"]])
        for each in brought["plan"]["passedOver"]
    ]


@pytest.fixture
def two_regions(user: User) -> User:
    user.spec("region", regions=[REGION, OTHER_REGION])
    return user


@pytest.mark.parametrize("code", variants("AllocationFailed", "SkuNotAvailable"))
def test_up_uses_the_next_region_and_cleans_up_the_first(two_regions: User, azure: Azure, code: str) -> None:
    """Azure refuses the VM at once, or accepts it and fails during the operation, which leaves a VM."""
    azure.fault(code, type="virtualMachines", method="PUT", region=REGION, count=0)
    brought = two_regions.up()
    assert brought["plan"]["candidate"] == {"region": OTHER_REGION, "size": SIZE}
    assert _passed(brought) == [(REGION, SIZE, [code])]
    assert _places(azure) == {OTHER_REGION}
    assert azure.everything() == PARTS
    assert azure.machine()["powerState"] == "PowerState/running"
    assert azure.machine()["properties"]["provisioningState"] == "Succeeded"
    billed = [machine["powerState"] for machine in azure.bill()]
    assert billed.count("running") == 1
    assert set(billed) <= {"running", "deleted"}
    assert brought["target"]["address"] == azure.address()


def test_summary_says_why_a_candidate_was_skipped(two_regions: User, azure: Azure) -> None:
    azure.limit(REGION, 0)
    done = two_regions("up", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert f"my-dsvm is running (simulated): {SIZE} in {OTHER_REGION}" in done.stdout
    heading, row = done.stderr.split("Passed over:\n")[1].splitlines()[:2]
    assert heading.split() == ["REGION", "ZONE", "SIZE", "REASON"]
    assert row.split()[:3] == [REGION, "-", SIZE]
    assert "needs 4 vCPUs of Standard NCASv3_T4 Family; 0 of 0 left" in row
    # The preflight found that, so nothing was created there.
    assert azure.everything() == PARTS
    assert _places(azure) == {OTHER_REGION}
    assert not [write for write in azure.writes() if write.startswith("DELETE")]
    assert len(azure.bill()) == 1


def test_up_cleans_up_when_all_candidates_fail(two_regions: User, azure: Azure) -> None:
    azure.limit(REGION, 0)
    azure.fault("AllocationFailed", type="virtualMachines", method="PUT", region=OTHER_REGION, count=0)
    done = two_regions("up", "gpu.yaml")
    assert done.returncode == 1
    assert done.stdout == ""
    error = done.stderr[done.stderr.index("error: no candidate is available") :]
    lines = [line.split() for line in error.splitlines()]
    (quota,) = [line for line in lines if "quota" in line and SIZE in line]
    (capacity,) = [line for line in lines if "AllocationFailed" in line and SIZE in line]
    assert (REGION in quota, OTHER_REGION in capacity) == (True, True)
    assert "help:" in error
    assert "gpuinfra sizes --gpu T4 --with-quota" in error
    assert azure.everything() == []
    assert not azure.is_billed()


def test_up_reports_undeletable_resources_of_a_failed_attempt(two_regions: User, azure: Azure) -> None:
    azure.fault("AllocationFailed", type="virtualMachines", method="PUT", region=REGION, count=0)
    azure.fault("ScopeLocked", type="virtualMachines", method="DELETE", count=0)
    done = two_regions("up", "gpu.yaml", "--json")
    assert done.returncode == 4
    why, left = json.loads(done.stdout)["diagnostics"]
    assert (why["code"], left["code"]) == ("no-capacity", "locked")
    assert "vm my-dsvm is off; what remains may be billed" in left["note"]
    assert "az lock" in left["help"]
    assert _places(azure) == {REGION}, "the next candidate waits for the cleanup"


def test_failed_replacement_says_that_the_machine_is_gone(user: User, azure: Azure) -> None:
    user.up()
    user.spec(image="dsvm-ubuntu-20.04")
    azure.fault("AllocationFailed", type="virtualMachines", method="PUT", count=0)
    problem = user.fails("up", "gpu.yaml", "--yes", code="no-candidate")
    assert "virtualMachines/my-dsvm" not in azure.everything()
    assert "gone" in problem["note"]


def test_unavailable_candidates_are_found_before_the_first_write(user: User, azure: Azure) -> None:
    """One region lacks the size, one has too little quota, one is restricted."""
    user.spec("region", regions=["austriaeast", REGION, OTHER_REGION])
    azure.limit(REGION, 3)
    azure.fault("restricted", resource=SIZE, region=OTHER_REGION)
    problem = user.fails("up", "gpu.yaml", code="no-candidate")
    first, *rows = problem["note"].splitlines()
    assert first == "nothing was created"
    assert [row.split()[2] for row in rows] == ["austriaeast", REGION, OTHER_REGION]
    assert "does not offer" in rows[0]
    assert "3 of 3 left" in rows[1]
    assert "NotAvailableForSubscription" in rows[2]
    assert "gpuinfra sizes" in problem["help"]
    assert (azure.writes(), azure.everything()) == ([], [])


@variant
def test_up_tries_the_next_size_in_the_same_region(user: User, azure: Azure) -> None:
    user.spec("size", sizes=[SIZE, LARGER_SIZE])
    azure.fault("AllocationFailed", type="virtualMachines", method="PUT")
    brought = user.up()
    assert brought["plan"]["candidate"] == {"region": REGION, "size": LARGER_SIZE}
    assert _passed(brought) == [(REGION, SIZE, ["AllocationFailed"])]
    assert azure.machine()["properties"]["hardwareProfile"]["vmSize"] == LARGER_SIZE
    assert azure.everything() == PARTS
    assert [machine["powerState"] for machine in azure.bill()].count("running") == 1


def test_up_tries_the_next_zone(user: User, azure: Azure) -> None:
    user.spec(zones=["1", "2"])
    azure.fault("ZonalAllocationFailed", type="virtualMachines", method="PUT")
    brought = user.up()
    assert brought["plan"]["candidate"] == {"region": REGION, "size": SIZE, "zone": "2"}
    (passed,) = brought["plan"]["passedOver"]
    assert (passed["zone"], passed["reasons"][0]["code"]) == ("1", "ZonalAllocationFailed")
    assert azure.machine()["zones"] == ["2"]
    assert azure.everything() == PARTS


@variant
def test_evicted_spot_machine_is_started_again(user: User, azure: Azure) -> None:
    user.spec(priority="spot", spot={"maxPrice": 0.3})
    brought = user.up()
    machine = azure.machine()
    assert machine["properties"]["priority"] == "Spot"
    assert machine["properties"]["evictionPolicy"] == "Deallocate"
    assert machine["properties"]["billingProfile"]["maxPrice"] == 0.3
    assert brought["plan"]["price"]["perHourUsd"] < 0.3

    azure.fault("evict", resource="my-dsvm")
    azure.control("POST", "clock", {"advance": 60})  # the machine gets its notice half a minute before
    assert azure.machine()["powerState"] == "PowerState/deallocated"
    before = azure.last_request()
    user.up()
    assert azure.machine()["powerState"] == "PowerState/running"
    assert azure.machine()["properties"]["vmId"] == machine["properties"]["vmId"]
    assert azure.writes(before).count("POST my-dsvm/start") == 1
