"""Money in a receipt: savings, remaining costs, and the command that ends them."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from gpuinfra.models.json_values import stamp
from gpuinfra.models.receipt import (
    LedgerEntry,
    LedgerEntryKind,
    OffProof,
    Receipt,
    Residue,
    entries_from_json,
    left_on_cost,
    next_morning,
)

ON = datetime(2026, 11, 16, 8, tzinfo=UTC)
OFF = datetime(2026, 11, 16, 20, tzinfo=UTC)
RECEIPT = Receipt(
    "my-dsvm",
    OffProof.DEALLOCATED,
    OFF,
    billed_from=ON,
    billed_to=OFF,
    price_per_hour=0.5,
    residue=(Residue("disk", "my-dsvm-disk", 19.2),),
    left_on_until=next_morning(OFF),
)


def test_savings_against_leaving_the_machine_on() -> None:
    assert (RECEIPT.saves_per_day, RECEIPT.left_on_cost) == (12.0, 6.0)
    found = RECEIPT.as_json()
    assert found["savesPerDayUsd"] == 12.0
    assert found["leftOn"] == {"until": "2026-11-17T08:00:00Z", "costUsd": 6.0}


@pytest.mark.parametrize(
    "receipt",
    [replace(RECEIPT, verified=None), replace(RECEIPT, price_per_hour=None), replace(RECEIPT, billed_from=None)],
)
def test_unknown_savings_are_omitted(receipt: Receipt) -> None:
    assert (receipt.saves_per_day, receipt.left_on_cost) == (None, None)
    assert (receipt.as_json()["savesPerDayUsd"], receipt.as_json()["leftOn"]) == (None, None)


def test_command_that_removes_remaining_cost_is_shown() -> None:
    assert RECEIPT.as_json()["removeCommand"] == "gpuinfra down my-dsvm --delete"
    assert replace(RECEIPT, simulated=True).remove_command == "gpuinfra down my-dsvm --delete --sandbox"
    assert replace(RECEIPT, residue=()).remove_command is None
    # As long as it may be on, its disk does not matter.
    assert replace(RECEIPT, verified=None).remove_command is None


def test_unproven_receipt_has_next_commands() -> None:
    assert RECEIPT.next_commands == ()
    lost = replace(RECEIPT, verified=None)
    assert lost.as_json()["nextCommands"] == ["gpuinfra down my-dsvm", "gpuinfra status my-dsvm"]
    assert replace(lost, deletes=True).next_commands[0] == "gpuinfra down my-dsvm --delete"


@pytest.mark.parametrize(
    ("now", "morning"),
    [
        (datetime(2026, 11, 16, 18, tzinfo=UTC), "2026-11-17T08:00:00Z"),
        (datetime(2026, 11, 16, 1, tzinfo=UTC), "2026-11-16T08:00:00Z"),
        (datetime(2026, 11, 16, 8, tzinfo=UTC), "2026-11-17T08:00:00Z"),
        (datetime(2026, 12, 31, 23, tzinfo=UTC), "2027-01-01T08:00:00Z"),
        (datetime(2026, 11, 16, 18, tzinfo=timezone(timedelta(hours=-6))), "2026-11-17T14:00:00Z"),
    ],
)
def test_overnight_savings_use_local_morning(now: datetime, morning: str) -> None:
    assert stamp(next_morning(now)) == morning


def test_overnight_savings_follow_daylight_saving() -> None:
    evening = datetime(2026, 10, 31, 20, tzinfo=ZoneInfo("America/Chicago"))
    assert left_on_cost(evening, next_morning(evening), 1.0) == 13.0
    assert left_on_cost(next_morning(evening), evening, 1.0) == 0.0
    assert left_on_cost(evening, next_morning(evening), None) is None


ENTRY = LedgerEntry(LedgerEntryKind.OFF, OFF, "my-dsvm", "gpuinfra-my-dsvm", since=ON, price_per_hour=0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("machine", 5),
        ("machine", None),
        ("group", ["gpuinfra"]),
        ("size", {}),
        ("cause", None),
        ("pricePerHour", "free"),
        ("pricePerHour", float("nan")),
        ("diskPerMonth", float("inf")),
        ("addressPerMonth", -5.0),
        ("addressPerMonth", 10**400),
        ("pricePerHour", True),
        ("spot", "no"),
        ("simulated", None),
        ("tags", ["team"]),
        ("tags", {"team": 5}),
        ("since", 5),
        ("what", "sold"),
    ],
)
def test_shared_record_with_an_impossible_value_is_left_out(name: str, value: object) -> None:
    sound = ENTRY.as_json()
    assert entries_from_json([{**sound, name: value}, sound, "text", {}]) == [ENTRY]
