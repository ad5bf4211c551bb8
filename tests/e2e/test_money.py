"""Costs, times and savings by the installed program: they match the bill of the embedded Azure."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.e2e.azure import Azure, advance, change_power
from tests.e2e.repository import commit_all
from tests.e2e.run_help import project
from tests.e2e.user import LARGER_SIZE, User, run_reap
from tests.sshd import eventually
from tests.variants import variant

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


@variant
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


@variant
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


def test_deleted_machine_without_a_receipt_has_its_price(user: User, azure: Azure, tmp_path: Any) -> None:
    user.spec(resourceGroup="team", tags={"project": "mnist"})
    user.up()
    advance(azure, MINUTES)
    azure.fault("AuthorizationFailed", type="deployments", count=0)
    deleted = user("down", "my-dsvm", "--delete")
    azure.clear_faults()
    assert deleted.returncode == 0
    assert "the cost of my-dsvm is not recorded in the subscription" in deleted.stderr
    other = User(azure, tmp_path / "other", tmp_path / "elsewhere")
    row = cost_row(other)
    assert (row["computeUsd"], row["unpricedSeconds"]) == (bill(azure), 0.0)
    # Without a receipt, Azure's log shows that it was ours, and its disk, but only its own workspace knows its address.
    assert (row["sure"], row["missing"], row["addressUsd"]) == ("estimated", ["address"], 0.0)
    assert row["diskUsd"] == cost_row(user)["diskUsd"] > 0
    (tagged,) = other.does("cost", "--tag", "project")["cost"]["rows"]
    assert tagged["label"] == "mnist"
    shown = other("cost")
    assert "activity log: estimated, without address" in shown.stdout
    (line,) = (each for each in shown.stdout.splitlines() if each.startswith("my-dsvm"))
    assert line.count("unknown") == 1, "it is not shown as $0.00"
    row = cost_row(user)
    assert (row["computeUsd"], row["sure"], row["missing"]) == (bill(azure), "exact", [])


@variant
def test_overnight_savings_after_midnight_end_the_same_day(user: User, azure: Azure) -> None:
    night = set_clock(azure, 2)
    user.up()
    receipt = user.down("my-dsvm", TZ="UTC")
    assert receipt["leftOn"]["until"] == f"{night:%Y-%m-%d}T08:00:00Z"
    assert receipt["leftOn"]["costUsd"] == pytest.approx(6 * 0.631, rel=0.01)


@variant
def test_since_is_when_the_machine_went_off_and_not_when_its_schedule_fired(user: User, azure: Azure) -> None:
    user.spec(lifecycle={"lease": "1h"})
    user.up()
    user.down("my-dsvm")
    off = azure.control("GET", "clock")["now"]
    advance(azure, 2 * 3600.0)
    (shown,) = user.does("status")["machines"]
    assert datetime.fromisoformat(shown["since"]).timestamp() == pytest.approx(off, abs=120)


@variant
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


def remove_tags(azure: Azure, *names: str) -> None:
    """Remove tags of the running VM, as a user does in the portal."""
    kept = {name: value for name, value in azure.machine()["tags"].items() if name not in names}
    status, answer = azure.send("PATCH", azure.id("Microsoft.Compute/virtualMachines", "my-dsvm"), {"tags": kept})
    assert status in {200, 202}, answer


def test_machine_without_its_tags_keeps_its_power_on_time(user: User, azure: Azure, tmp_path: Any) -> None:
    user.spec(lifecycle={"maxCost": "1 USD"})
    user.up()
    cap = user.does("lease", "my-dsvm")["capAt"]
    advance(azure, MINUTES)
    remove_tags(azure, "gpuinfra:on-since")
    assert user.does("lease", "my-dsvm")["capAt"] == cap
    user.up()
    shown = user.does("lease", "my-dsvm")
    assert (shown["capAt"], shown["leaseUntil"]) == (cap, cap)
    # A workspace that has no records.
    remove_tags(azure, "gpuinfra:on-since")
    other = User(azure, tmp_path / "other", tmp_path / "elsewhere")
    receipt = other.down("my-dsvm")
    assert receipt["costUsd"] == bill(azure)
    assert receipt["billedSeconds"] > MINUTES
    assert receipt["cause"] == "gpuinfra down"


def test_schedule_that_fires_on_a_machine_that_is_off_changes_nothing(user: User, azure: Azure) -> None:
    """The cost cap ends the lease at 9:35, so the daily schedule fires at 10:10 on a machine that is off."""
    set_clock(azure, 8)
    user.spec(lifecycle={"maxCost": "1 USD", "hours": {"timezone": "UTC", "on": ["mon-sun 08:00-18:00"]}})
    commit_all(user, "add")
    user.up()
    advance(azure, 1.5 * 3600.0)
    user.down("my-dsvm")
    off = azure.control("GET", "clock")["now"]
    advance(azure, 3600.0)
    assert run_reap(user, "--specs", ".", "--start")["started"] == [], "it was stopped within these hours"
    for _ in range(2):
        advance(azure, 24 * 3600.0)
        (shown,) = user.does("status")["machines"]
        assert datetime.fromisoformat(shown["since"]).timestamp() == pytest.approx(off, abs=120)
    (started,) = run_reap(user, "--specs", ".", "--start")["started"]
    assert started["name"] == "my-dsvm"
    assert azure.machine()["powerState"] == "PowerState/running"


def test_machine_that_its_lease_ended_before_the_log_costs_at_most_its_lease(
    user: User, azure: Azure, tmp_path: Any
) -> None:
    user.spec(lifecycle={"lease": "2h"}, tags={"project": "mnist"})
    user.up()
    advance(azure, 120 * 86_400.0)
    (machine,) = azure.bill()
    assert machine["powerState"] == "deallocated"
    other = User(azure, tmp_path / "other", tmp_path / "elsewhere")
    for own in (user, other):
        found = own.does("cost", "--since", "130d")["cost"]
        for amounts in (*found["rows"], found["total"]):
            compute, total = amounts["range"]["computeUsd"], amounts["range"]["totalUsd"]
            assert compute["min"] <= machine["costUsd"] <= compute["max"]
            assert compute["max"] == pytest.approx((2 + 35 / 60) * 0.631, abs=0.02)
            assert total["max"] - total["min"] == pytest.approx(compute["max"] - compute["min"], abs=0.0002)
            assert (amounts["computeUsd"], amounts["totalUsd"]) == (compute["min"], total["min"])
        assert found["rows"][0]["sure"] == "estimated"
        table = own("cost", "--since", "130d")
        assert "\N{EN DASH}$1.6" in table.stdout.splitlines()[-1]
        assert "is not known exactly" in table.stderr
        (row,) = own.does("cost", "--since", "130d", "--tag", "project")["cost"]["rows"]
        assert (row["label"], row["range"]["computeUsd"]) == ("mnist", compute)
        header, line = own("cost", "--since", "130d", "--csv").stdout.splitlines()
        columns = dict(zip(header.split(","), line.split(","), strict=True))
        assert float(columns["computeUsdMax"]) == compute["max"]
    # The machine is off, so later days cost only its disk and its address.
    (row,) = user.does("cost", "--since", "100d")["cost"]["rows"]
    assert row["range"]["onSeconds"] == {"min": 0, "max": 0}
    # The tags of the next time on replace those of the first one, so that one is recorded for others.
    user.up()
    advance(azure, MINUTES)
    user.down("my-dsvm")
    own, fresh = (
        found.does("cost", "--since", "130d")["cost"]["total"]["range"]["computeUsd"] for found in (user, other)
    )
    assert fresh == pytest.approx(own, abs=0.002)
    assert fresh["min"] <= sum(each["costUsd"] for each in azure.bill()) <= fresh["max"]
    assert fresh["min"] >= MINUTES / 3600 * 0.631


def deployments(azure: Azure) -> list[dict[str, Any]]:
    return list(azure.get(f"{azure.subscription}/providers/Microsoft.Resources/deployments")["value"])


def test_fresh_clone_shows_the_cost_of_deleted_machines(user: User, azure: Azure, tmp_path: Any) -> None:
    shared: dict[str, Any] = {"resourceGroup": "team", "tags": {"project": "mnist"}}
    user.spec(**shared)
    user.up()
    advance(azure, MINUTES)
    receipts = [user.down("my-dsvm", "--delete")["costUsd"]]
    # Its agent or Azure's schedule ends it, and another workspace deletes it. Records have whole seconds.
    advance(azure, 60)
    user.spec(**shared, lifecycle={"lease": "1h"})
    user.up()
    advance(azure, 3 * 3600.0)
    other = User(azure, tmp_path / "other", tmp_path / "elsewhere")
    other.down("my-dsvm", "--delete", "--yes")
    own, fresh = (found.does("cost")["cost"] for found in (user, other))
    assert fresh["receipts"] == {"state": "read"}
    for found in (own, fresh):
        (row,) = found["rows"]
        assert (row["computeUsd"], row["sure"], row["missing"]) == (bill(azure), "exact", [])
    assert fresh["total"]["totalUsd"] == pytest.approx(own["total"]["totalUsd"], abs=0.005)
    assert own["total"]["diskUsd"] > 0
    (tagged,) = other.does("cost", "--tag", "project")["cost"]["rows"]
    assert tagged["label"] == "mnist"
    assert receipts[0] == pytest.approx(azure.bill()[0]["costUsd"], abs=0.0005)
    # One deployment for all receipts of a machine, without resources or secrets.
    (deployment,) = deployments(azure)
    assert deployment["name"].startswith("gpuinfra-receipts-my-dsvm-")
    assert deployment["properties"].get("outputResources", []) == []
    # After the log is over, only the receipts know the machine.
    advance(azure, 100 * 86_400.0)
    (row,) = other.does("cost", "--since", "130d")["cost"]["rows"]
    assert (row["computeUsd"], row["sure"]) == (bill(azure), "recorded")
    azure.fault("AuthorizationFailed", type="deployments", count=0)
    for found in (user, other):
        refused = found("cost", "--since", "130d")
        assert "receipts of deleted machines in the subscription: not allowed" in refused.stderr
    azure.clear_faults()
