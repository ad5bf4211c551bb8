"""Costs, times and savings by the installed program: they match the bill of the embedded Azure."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.e2e.azure import Azure, advance, change_power
from tests.e2e.run_help import project
from tests.e2e.user import LARGER_SIZE, User
from tests.sshd import eventually

MINUTES = 600.0


def cost_row(user: User, *words: str) -> dict[str, Any]:
    (row,) = user.does("cost", *words)["cost"]["rows"]
    return dict(row)


def bill(azure: Azure) -> Any:
    return pytest.approx(sum(each["costUsd"] for each in azure.bill()), abs=0.0005)


def set_clock(azure: Azure, hour: int) -> datetime:
    """Set the clock to this hour of tomorrow, in UTC."""
    now = datetime.fromtimestamp(azure.control("GET", "clock")["now"], UTC)
    wanted = datetime(now.year, now.month, now.day, hour, tzinfo=UTC) + timedelta(days=1)
    advance(azure, (wanted - now).total_seconds())
    return wanted


def test_resized_machine_costs_what_azure_bills(user: User, azure: Azure) -> None:
    user.up()
    advance(azure, MINUTES)
    user.spec(size=LARGER_SIZE)
    user.up("--yes")
    advance(azure, MINUTES / 2)
    shown = user.does("status")["machines"][0]
    since_restart = pytest.approx(shown["pricePerHourUsd"] / 12, abs=0.02)
    assert shown["costUsd"] == since_restart
    receipt = user.down("my-dsvm")
    assert receipt["costUsd"] == since_restart
    row = cost_row(user)
    assert (row["computeUsd"], row["sure"]) == (bill(azure), "exact")
    # Without the log, by the ledger.
    azure.fault("AuthorizationFailed", type="values", count=0)
    recorded = cost_row(user)
    azure.clear_faults()
    assert recorded["computeUsd"] == pytest.approx(row["computeUsd"], abs=0.02)
    assert recorded["sure"] == "recorded"


def test_machine_that_was_off_in_between_costs_what_azure_bills(user: User, azure: Azure) -> None:
    user.up()
    advance(azure, MINUTES)
    change_power(azure, "deallocate")
    advance(azure, 10 * 3600.0)
    change_power(azure, "start")
    advance(azure, MINUTES / 2)
    (shown,) = user.does("status")["machines"]
    assert shown["costUsd"] == pytest.approx(0.631 / 12, abs=0.02)
    since = datetime.fromisoformat(shown["since"]).timestamp()
    assert since == pytest.approx(azure.control("GET", "clock")["now"] - MINUTES / 2, abs=120)
    receipt = user.down("my-dsvm")
    assert receipt["costUsd"] == pytest.approx(0.631 / 12, abs=0.02)
    row = cost_row(user)
    assert (row["computeUsd"], row["sure"]) == (bill(azure), "exact")


def test_deleted_machine_of_another_workspace_has_its_price(user: User, azure: Azure, tmp_path: Any) -> None:
    user.up()
    advance(azure, MINUTES)
    user.down("my-dsvm", "--delete")
    other = User(azure, tmp_path / "other", tmp_path / "elsewhere")
    row = cost_row(other)
    assert (row["computeUsd"], row["unpricedSeconds"]) == (bill(azure), 0.0)
    # Only the workspace that made the machine knows what its disk and its address cost.
    assert (row["sure"], row["missing"], row["diskUsd"]) == ("estimated", ["disk", "address"], 0.0)
    shown = other("cost")
    assert "activity log: estimated, without disk and address" in shown.stdout
    (line,) = (each for each in shown.stdout.splitlines() if each.startswith("my-dsvm"))
    assert line.count("unknown") == 2, "neither is shown as $0.00"
    row = cost_row(user)
    assert (row["computeUsd"], row["sure"], row["missing"]) == (bill(azure), "exact", [])


def test_overnight_savings_after_midnight_end_the_same_day(user: User, azure: Azure) -> None:
    night = set_clock(azure, 2)
    user.up()
    receipt = user.down("my-dsvm", TZ="UTC")
    assert receipt["leftOn"]["until"] == f"{night:%Y-%m-%d}T08:00:00Z"
    assert receipt["leftOn"]["costUsd"] == pytest.approx(6 * 0.631, rel=0.01)


def test_since_is_when_the_machine_went_off_and_not_when_its_schedule_fired(user: User, azure: Azure) -> None:
    user.spec(lifecycle={"lease": "1h"})
    user.up()
    user.down("my-dsvm")
    off = azure.control("GET", "clock")["now"]
    advance(azure, 2 * 3600.0)
    (shown,) = user.does("status")["machines"]
    assert datetime.fromisoformat(shown["since"]).timestamp() == pytest.approx(off, abs=120)


def test_savings_name_the_time_off_that_they_are_for(user: User, azure: Azure) -> None:
    user.up()
    user.down("my-dsvm")
    advance(azure, 14 * 3600.0 + 60)
    row = cost_row(user)
    assert row["offSeconds"] == pytest.approx(14 * 3600, abs=120)
    assert row["savedUsd"] == pytest.approx(14 * 0.631, rel=0.01)
    table = user("cost")
    header, line = table.stdout.splitlines()[:2]
    assert header.split()[3:5] == ["ON", "OFF"]
    assert "14 h" in line
    assert "saved" in table.stderr
    assert "14 h" in table.stderr


def test_detached_and_cancelled_runs_have_their_cost(user: User, azure: Azure) -> None:
    project(user)
    user.up()
    price = 0.631 / 3600
    assert user("submit", "-c", "my_dsvm", "--detach", "waits.py").returncode == 0
    (going,) = user.does("runs")["runs"]
    assert going["costUsd"] is not None
    # The cost of a running job grows; it is shown to a hundredth of a cent.
    assert eventually(lambda: user.does("runs")["runs"][0]["costUsd"] >= 0.0003, 60)
    advance(azure, 30)
    # Azure knows when the machine was on. When the job began, only the run's record says; its end is not known.
    rows = {row["label"]: row for row in user.does("cost", "--by", "run")["cost"]["rows"]}
    assert (rows[going["id"]]["sure"], rows["my-dsvm (idle)"]["sure"]) == ("estimated", "estimated")
    assert user("cancel", "last", "--grace", "0s").returncode == 0
    (ended,) = user.does("runs")["runs"]
    seconds = datetime.fromisoformat(ended["ended"]) - datetime.fromisoformat(ended["started"])
    assert ended["costUsd"] == pytest.approx(seconds.total_seconds() * price, abs=0.00006)
    shown = user.does("runs", "show", "last")["run"]
    assert shown["costUsd"] == ended["costUsd"]
    row = next(each for each in user.does("cost", "--by", "run")["cost"]["rows"] if each["label"] == ended["id"])
    assert row["computeUsd"] == pytest.approx(ended["costUsd"], abs=0.0002)
    assert (row["sure"], row["sources"]) == ("recorded", ["activity log", "run records"])
