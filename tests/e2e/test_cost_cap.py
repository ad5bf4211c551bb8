"""A changed `maxCost`: every layer that switches the machine off follows it, and `lease` explains the end."""

import time
from datetime import datetime, timedelta
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.user import User

SCHEDULE = ("Microsoft.DevTestLab/schedules", "shutdown-computevm-my-dsvm")
# $0.631 an hour: 1 USD pays for 1 h 35 min, 2 USD for 3 h 10 min, 5 USD for 7 h 55 min.
CAPS = {"1 USD": timedelta(minutes=95), "2 USD": timedelta(minutes=190), "5 USD": timedelta(minutes=475)}
LEASE = timedelta(hours=4)
AGENT_SECONDS = 60


def agent(user: User, until: datetime) -> dict[str, Any]:
    """What the guest agent says, once it has read the machine's tags again."""
    end = time.monotonic() + AGENT_SECONDS
    while True:
        (machine,) = user.does("status", "my-dsvm", "--agent")["machines"]
        found = dict(machine["agent"])
        if abs(datetime.fromisoformat(found["until"]) - until) <= timedelta(minutes=1):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.2)


def end_in_all_layers(user: User, azure: Azure) -> tuple[timedelta, str]:
    """How long after power-on the machine goes off and by which rule: tag, schedule and `lease` agree."""
    marks = azure.machine()["tags"]
    since, until = (datetime.fromisoformat(marks[f"gpuinfra:{name}"]) for name in ("on-since", "lease-until"))
    daily = azure.part(*SCHEDULE)["properties"]
    assert (daily["status"], daily["dailyRecurrence"]["time"]) == ("Enabled", f"{until:%H%M}")
    shown = user.does("lease", "my-dsvm")
    assert datetime.fromisoformat(shown["leaseUntil"]) == until
    assert (shown["capAt"] == shown["leaseUntil"]) == (shown["cause"] == "cost cap")
    (machine,) = user.does("status", "my-dsvm")["machines"]
    assert machine["nextChange"]["cause"] == shown["cause"]
    return until - since, shown["cause"]


def about(length: timedelta) -> Any:
    """To the minute: the schedule has no seconds."""
    return pytest.approx(length.total_seconds(), abs=60)


@pytest.mark.parametrize(
    ("first", "then", "length", "cause"),
    [
        pytest.param("1 USD", "2 USD", CAPS["2 USD"], "cost cap", id="raised-below-the-lease"),
        pytest.param("1 USD", "5 USD", LEASE, "lease", id="raised-beyond-the-lease"),
        pytest.param("1 USD", None, LEASE, "lease", id="removed"),
        pytest.param("5 USD", "1 USD", CAPS["1 USD"], "cost cap", id="lowered"),
        pytest.param(None, "2 USD", CAPS["2 USD"], "cost cap", id="added"),
    ],
)
def test_up_with_another_max_cost_moves_the_end(
    user: User, azure: Azure, first: str | None, then: str | None, length: timedelta, cause: str
) -> None:
    user.spec(lifecycle={"lease": "4h", **({"maxCost": first} if first else {})})
    user.up()
    end_in_all_layers(user, azure)
    user.spec(lifecycle={"lease": "4h", **({"maxCost": then} if then else {})})
    user.up()
    found, rule = end_in_all_layers(user, azure)
    assert (found.total_seconds(), rule) == (about(length), cause)


def test_the_agent_follows_a_raised_max_cost(user: User, azure: Azure) -> None:
    user.spec(lifecycle={"lease": "4h", "maxCost": "1 USD"})
    first = datetime.fromisoformat(user.up()["leaseUntil"])
    assert agent(user, first)["cause"] == "cost cap"
    user.spec(lifecycle={"lease": "4h", "maxCost": "5 USD"})
    second = datetime.fromisoformat(user.up()["leaseUntil"])
    assert second > first
    assert agent(user, second)["cause"] == "lease over"
    assert "when its lease ends" in user("lease", "my-dsvm").stdout


def test_a_raised_max_cost_keeps_a_lease_that_was_extended(user: User, azure: Azure) -> None:
    user.spec(lifecycle={"lease": "1h", "maxCost": "2 USD"})
    user.up()
    user.does("lease", "my-dsvm", "--extend", "5h")
    assert end_in_all_layers(user, azure)[1] == "cost cap"
    user.spec(lifecycle={"lease": "1h", "maxCost": "5 USD"})
    user.up()
    found, _ = end_in_all_layers(user, azure)
    assert found.total_seconds() >= CAPS["2 USD"].total_seconds() - 60
