"""What a receipt says of money: what was saved, what still costs, and what would end that."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest

from gpuinfra.models.receipt import Off, Receipt, Residue, left_on_cost, next_morning, stamp

ON = datetime(2026, 11, 16, 8, tzinfo=UTC)
OFF = datetime(2026, 11, 16, 20, tzinfo=UTC)
RECEIPT = Receipt(
    "my-dsvm",
    Off.DEALLOCATED,
    OFF,
    billed_from=ON,
    billed_to=OFF,
    price_per_hour=0.5,
    residue=(Residue("disk", "my-dsvm-disk", 19.2),),
    left_on_until=next_morning(OFF),
)


def test_what_was_saved_against_leaving_it_on() -> None:
    assert (RECEIPT.saves_per_day, RECEIPT.left_on_cost) == (12.0, 6.0)
    found = RECEIPT.as_json()
    assert found["savesPerDayUsd"] == 12.0
    assert found["leftOn"] == {"until": "2026-11-17T08:00:00Z", "costUsd": 6.0}


@pytest.mark.parametrize(
    "receipt",
    [replace(RECEIPT, verified=None), replace(RECEIPT, price_per_hour=None), replace(RECEIPT, billed_from=None)],
)
def test_nothing_is_saved_that_nobody_knows_to_be_saved(receipt: Receipt) -> None:
    assert (receipt.saves_per_day, receipt.left_on_cost) == (None, None)
    assert (receipt.as_json()["savesPerDayUsd"], receipt.as_json()["leftOn"]) == (None, None)


def test_the_command_that_removes_what_still_costs() -> None:
    assert RECEIPT.as_json()["removeCommand"] == "gpuinfra down my-dsvm --delete"
    assert replace(RECEIPT, simulated=True).remove_command == "gpuinfra down my-dsvm --delete --sandbox"
    assert replace(RECEIPT, residue=()).remove_command is None
    # As long as it may be on, its disk is not what matters.
    assert replace(RECEIPT, verified=None).remove_command is None


def test_what_to_run_where_nothing_is_proven() -> None:
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
def test_the_morning_is_that_of_whoever_asks(now: datetime, morning: str) -> None:
    assert stamp(next_morning(now)) == morning


def test_a_night_in_which_the_clocks_change_is_as_long_as_it_is() -> None:
    evening = datetime(2026, 10, 31, 20, tzinfo=ZoneInfo("America/Chicago"))
    assert left_on_cost(evening, next_morning(evening), 1.0) == 13.0
    assert left_on_cost(next_morning(evening), evening, 1.0) == 0.0
    assert left_on_cost(evening, next_morning(evening), None) is None
