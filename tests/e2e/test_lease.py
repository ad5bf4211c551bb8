"""Leases by the installed program: shown, extended, released, and limited by hours and cost cap."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.run_help import Start, wait_for_agent
from tests.e2e.user import User
from tests.variants import variants

SCHEDULE = ("Microsoft.DevTestLab/schedules", "shutdown-computevm-my-dsvm")
OFF_SECONDS = 60
BACKSTOP = timedelta(minutes=35)


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def kept(azure: Azure) -> tuple[datetime, str]:
    """Return the end of the lease by the tag and by Azure's schedule."""
    daily = azure.part(*SCHEDULE)["properties"]
    assert daily["status"] == "Enabled"
    return moment(azure.machine()["tags"]["gpuinfra:lease-until"]), daily["dailyRecurrence"]["time"]


def now(azure: Azure) -> datetime:
    return datetime.fromtimestamp(azure.control("GET", "clock")["now"], UTC)


def advance(azure: Azure, length: timedelta) -> None:
    azure.control("POST", "clock", {"advance": length.total_seconds()})


def wait_until_off(azure: Azure) -> None:
    end = time.monotonic() + OFF_SECONDS
    while azure.is_billed():
        assert time.monotonic() < end, "it is still billed"
        time.sleep(0.2)


def test_lease_is_shown_extended_and_released(user: User, azure: Azure) -> None:
    # 5 USD at $0.631 an hour are 7 h 55 min.
    user.spec(lifecycle={"lease": "4h", "maxCost": "5 USD"})
    first = moment(user.up()["leaseUntil"])
    assert azure.machine()["tags"]["gpuinfra:terms"] == "lease=4h idle=20m cap=7h55m"
    wait_for_agent(azure)
    (machine,) = user.does("status", "my-dsvm", "--agent")["machines"]
    assert machine["nextChange"]["cause"] == "lease"
    assert (machine["agent"]["action"], machine["agent"]["jobs"]) == ("watching", [])

    before = azure.last_request()
    shown = user.does("lease", "my-dsvm")
    assert (moment(shown["leaseUntil"]), shown["cause"], shown["changed"]) == (first, "lease", False)
    assert shown["terms"] == {"lease": "4h", "idle": "20m", "cap": "7h55m"}
    assert 2.5 < shown["costAtEndUsd"] < 2.6
    assert azure.writes(before) == []

    assert user.does("lease", "gpu.yaml", "--extend", "2h")["changed"] is True
    assert kept(azure) == (first + timedelta(hours=2), f"{first + timedelta(hours=2) + BACKSTOP:%H%M}")
    capped = user.does("lease", "my-dsvm", "--extend", "1d")
    assert (capped["cause"], capped["capped"], capped["leaseUntil"]) == ("cost cap", True, capped["capAt"])
    assert kept(azure)[0] == moment(capped["capAt"])
    in_vain = user("lease", "my-dsvm", "--extend", "1h")
    assert in_vain.returncode == 1
    assert "does not allow a later end" in in_vain.stderr
    assert azure.machine()["tags"]["gpuinfra:name"] == "my-dsvm"

    # A released lease ends with the minute, so the command needs most of one to see the machine on.
    azure.control("POST", "clock", {"speed": 0.01})
    advance(azure, timedelta(seconds=65 - now(azure).second))
    released = user("lease", "my-dsvm", "--release")
    assert released.returncode == 0, released.stderr
    assert released.stdout.startswith("my-dsvm (simulated)\n  off at ")
    azure.control("POST", "clock", {"speed": 1})
    advance(azure, timedelta(minutes=2))
    wait_until_off(azure)
    user.fails("lease", "my-dsvm", "--extend", "1h", code="machine-is-off")


def test_hours_keep_a_machine_on_until_they_end_on_a_holiday(user: User, azure: Azure) -> None:
    start = now(azure)
    noon = datetime(start.year, start.month, start.day, 12, tzinfo=UTC) + timedelta(days=1)
    advance(azure, noon - start)
    tomorrow = noon.date() + timedelta(days=1)
    (user.workspace / "holidays.txt").write_text(f"# closed\n{tomorrow}..{tomorrow + timedelta(days=2)}\n")
    hours: dict[str, Any] = {"timezone": "UTC", "on": "daily 00:00-24:00", "holidays": "holidays.txt"}
    user.spec(lifecycle={"lease": "1h", "hours": hours})
    brought = user.up()
    midnight = datetime(tomorrow.year, tomorrow.month, tomorrow.day, tzinfo=UTC)
    assert moment(brought["leaseUntil"]) == midnight
    assert kept(azure) == (midnight, "0035")
    shown = user.does("lease", "my-dsvm")
    assert (shown["cause"], shown["hours"]) == ("hours", "UTC daily 00:00-24:00")

    # The dates are part of the spec, and a lease is changed by `up` where the spec is.
    (user.workspace / "holidays.txt").write_text(f"{tomorrow + timedelta(days=1)}\n")
    (machine,) = user.does("status")["machines"]
    assert "spec changed since up" in machine["drift"]
    (user.workspace / "holidays.txt").write_text("tomorrow\n")
    wrong = user("up", "gpu.yaml", "--json")
    assert wrong.returncode == 2
    (diagnostic,) = json.loads(wrong.stdout)["diagnostics"]
    assert (diagnostic["code"], diagnostic["file"]) == ("bad-date", "holidays.txt")


# Azure applies a change of its daily schedule from the next day on, if it comes shortly before the schedule fires.


def extend_at(user: User, azure: Azure, at: datetime, length: str) -> dict[str, Any]:
    """Extend the lease at this moment, however long the program takes: the clock almost stands still meanwhile."""
    azure.control("POST", "clock", {"speed": 0.01})
    advance(azure, at - now(azure))
    extended = user.does("lease", "my-dsvm", "--extend", length)
    azure.control("POST", "clock", {"speed": 1})
    return extended


@pytest.mark.parametrize("window", variants(1800, 60))
def test_extension_at_the_last_moment_keeps_the_machine_on(user: User, azure: Azure, window: int) -> None:
    azure.fault("schedule-window", seconds=window)
    user.spec(lifecycle={"lease": "1h", "idle": "5h"})
    end = moment(user.up()["leaseUntil"])
    extended = extend_at(user, azure, end - timedelta(seconds=50), "3h")
    assert extended["scheduleMayStillStopAt"] is None
    # Neither the end of the old lease nor the old stop of the schedule counts.
    advance(azure, end + BACKSTOP + timedelta(minutes=5) - now(azure))
    assert azure.machine()["powerState"] == "PowerState/running"
    assert azure.is_billed()


@pytest.mark.parametrize("window", variants(1800, 60))
def test_schedule_alone_ends_a_machine_after_a_late_extension(user: User, azure: Azure, window: int) -> None:
    azure.fault("schedule-window", seconds=window)
    azure.fault("AuthorizationFailed", method="PUT", type="roleAssignments", count=0)
    user.spec(lifecycle={"lease": "1h", "idle": "5h"})
    end = moment(user.up()["leaseUntil"])
    extend_at(user, azure, end - timedelta(seconds=50), "1h")
    advance(azure, end + timedelta(hours=1) + BACKSTOP + timedelta(minutes=1) - now(azure))
    assert not azure.is_billed()


def test_release_without_an_armed_agent_deallocates_at_once(user: User, azure: Azure) -> None:
    azure.fault("schedule-window", seconds=1800)
    azure.fault("AuthorizationFailed", method="PUT", type="roleAssignments", count=0)
    user.up()
    released = user("lease", "my-dsvm", "--release")
    assert released.returncode == 0, released.stderr
    assert not azure.is_billed(), "neither the clock nor the agent was needed"
    assert released.stdout.startswith("my-dsvm (simulated)\n  off ")


def test_extension_keeps_the_schedule_on_if_the_agent_cannot_deallocate(user: User, azure: Azure) -> None:
    """An end a day or more away switches the schedule off, and then nothing in Azure would stop this machine."""
    azure.fault("AuthorizationFailed", method="PUT", type="roleAssignments", count=0)
    user.up()
    extended = user("lease", "my-dsvm", "--extend", "2d")
    assert extended.returncode == 0, extended.stderr
    assert "the guest agent cannot switch my-dsvm off" in extended.stderr
    until, _ = kept(azure)
    assert timedelta(hours=23) < until - now(azure) < timedelta(days=1) - BACKSTOP
    advance(azure, timedelta(days=1))
    assert not azure.is_billed()


def test_release_reports_off_when_the_agent_is_faster(user: User, azure: Azure, start: Start) -> None:
    user.up()
    wait_for_agent(azure)
    azure.fault("hold-after", method="PUT", type="schedules")
    release = start("lease", "my-dsvm", "--release")
    release.until_held()
    advance(azure, timedelta(minutes=2))
    wait_until_off(azure)
    azure.clear_faults()
    assert release.end() == 0, release.said
    assert release.out.startswith("my-dsvm (simulated)\n  off  ")
    assert "deallocating" not in release.err, "it was off already"


def test_invalid_lease_arguments_are_refused(user: User, azure: Azure) -> None:
    user.fails("lease", "never-was", code="no-such-machine", exit_code=2)
    user.fails("lease", "my-dsvm", "--extend", "1h", "--release", code="usage", exit_code=2)
    user.fails("lease", "my-dsvm", "--extend", "soon", code="usage", exit_code=2)
    assert azure.writes() == []


def test_lease_cannot_be_extended_beyond_thirty_days(user: User, azure: Azure) -> None:
    user.spec(lifecycle={"lease": "1h", "idle": "1h"})
    user.up()
    until = user.does("lease", "my-dsvm", "--extend", "29d")["leaseUntil"]
    refused = user.fails("lease", "my-dsvm", "--extend", "29d", code="usage", exit_code=2)
    assert "30d from now" in refused["note"]
    assert user.does("lease", "my-dsvm")["leaseUntil"] == until


def test_extended_lease_is_no_difference_and_reap_switches_the_schedule_on_for_its_last_day(
    user: User, azure: Azure
) -> None:
    user.spec(lifecycle={"lease": "1h", "idle": "20d"})
    user.up()
    assert user.does("lease", "my-dsvm", "--extend", "3d")["changed"] is True
    for passed in (timedelta(minutes=10), timedelta(days=2, hours=6)):
        advance(azure, passed)
        assert azure.part(*SCHEDULE)["properties"]["status"] == "Disabled"
        assert user.plan("--detailed-exitcode")["changes"] == []
    before = azure.last_request()
    assert user("reap", "--dry-run").returncode == 0
    assert azure.writes(before) == []
    assert "Azure's daily schedule is on for the last day" in user("reap").stderr
    until, time_of_day = kept(azure)
    assert time_of_day == f"{until + BACKSTOP:%H%M}"
    assert user.plan("--detailed-exitcode")["changes"] == []
