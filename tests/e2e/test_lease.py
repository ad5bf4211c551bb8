"""Leases by the installed program: shown, extended, released, kept to by hours and cost cap."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.e2e.azure import Azure
from tests.e2e.user import User

SCHEDULE = ("Microsoft.DevTestLab/schedules", "shutdown-computevm-my-dsvm")
OFF_SECONDS = 60


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def kept(azure: Azure) -> tuple[datetime, str]:
    """What the tag says, and Azure's own schedule."""
    daily = azure.part(*SCHEDULE)["properties"]
    assert daily["status"] == "Enabled"
    return moment(azure.machine()["tags"]["gpuinfra:lease-until"]), daily["dailyRecurrence"]["time"]


def advance(azure: Azure, length: timedelta) -> None:
    azure.control("POST", "clock", {"advance": length.total_seconds()})


def wait_until_off(azure: Azure) -> None:
    end = time.monotonic() + OFF_SECONDS
    while azure.is_billed():
        assert time.monotonic() < end, "it is still billed"
        time.sleep(0.2)


def test_a_lease_is_shown_extended_and_released(user: User, azure: Azure) -> None:
    # 5 USD at $0.631 an hour are 7 h 55 min.
    user.spec(lifecycle={"lease": "4h", "maxCost": "5 USD"})
    first = moment(user.up()["leaseUntil"])
    assert azure.machine()["tags"]["gpuinfra:terms"] == "lease=4h idle=20m cap=7h55m"
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
    assert kept(azure) == (first + timedelta(hours=2), f"{first + timedelta(hours=2):%H%M}")
    capped = user.does("lease", "my-dsvm", "--extend", "1d")
    assert (capped["cause"], capped["capped"], capped["leaseUntil"]) == ("cost cap", True, capped["capAt"])
    assert kept(azure)[0] == moment(capped["capAt"])
    in_vain = user("lease", "my-dsvm", "--extend", "1h")
    assert in_vain.returncode == 1
    assert "the cost cap lets it be on no longer" in in_vain.stderr
    assert azure.machine()["tags"]["gpuinfra:name"] == "my-dsvm"

    released = user("lease", "my-dsvm", "--release")
    assert released.returncode == 0, released.stderr
    assert released.stdout.startswith("my-dsvm (simulated)\n  off at ")
    advance(azure, timedelta(minutes=2))
    wait_until_off(azure)
    user.fails("lease", "my-dsvm", "--extend", "1h", code="machine-is-off")


def test_hours_keep_a_machine_on_to_their_end_which_may_be_a_holiday(user: User, azure: Azure) -> None:
    now = datetime.fromtimestamp(azure.control("GET", "clock")["now"], UTC)
    noon = datetime(now.year, now.month, now.day, 12, tzinfo=UTC) + timedelta(days=1)
    advance(azure, noon - now)
    tomorrow = noon.date() + timedelta(days=1)
    (user.workspace / "holidays.txt").write_text(f"# nobody is here\n{tomorrow}..{tomorrow + timedelta(days=2)}\n")
    hours: dict[str, Any] = {"timezone": "UTC", "on": "daily 00:00-24:00", "holidays": "holidays.txt"}
    user.spec(lifecycle={"lease": "1h", "hours": hours})
    brought = user.up()
    midnight = datetime(tomorrow.year, tomorrow.month, tomorrow.day, tzinfo=UTC)
    assert moment(brought["leaseUntil"]) == midnight
    assert kept(azure) == (midnight, "0000")
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


def test_wrong_words(user: User, azure: Azure) -> None:
    user.fails("lease", "never-was", code="no-such-machine", exit_code=2)
    user.fails("lease", "my-dsvm", "--extend", "1h", "--release", code="usage", exit_code=2)
    user.fails("lease", "my-dsvm", "--extend", "soon", code="usage", exit_code=2)
    assert azure.writes() == []
