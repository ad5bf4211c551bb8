"""A changed `maxCost`: every layer that switches the machine off follows it, and `lease` explains the end."""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.run_help import wait_for_agent
from tests.e2e.user import User
from tests.sshd import eventually
from tests.variants import variants

SCHEDULE = ("Microsoft.DevTestLab/schedules", "shutdown-computevm-my-dsvm")
# $0.631 an hour: 1 USD pays for 1 h 35 min, 2 USD for 3 h 10 min, 5 USD for 7 h 55 min.
CAPS = {"1 USD": timedelta(minutes=95), "2 USD": timedelta(minutes=190), "5 USD": timedelta(minutes=475)}
LEASE, BACKSTOP = timedelta(hours=4), timedelta(minutes=35)
AGENT_SECONDS = 60


def agent(user: User, until: datetime) -> dict[str, Any]:
    """What the guest agent says, once it has read the machine's tags again."""
    end = time.monotonic() + AGENT_SECONDS
    while True:
        (machine,) = user.does("status", "my-dsvm", "--agent")["machines"]
        assert machine["agent"], (machine, [each for each in user.azure.requests() if each["method"] != "GET"][-8:])
        found = dict(machine["agent"])
        # While the machine boots, the agent does not answer.
        if "until" in found and abs(datetime.fromisoformat(found["until"]) - until) <= timedelta(minutes=1):
            return found
        assert time.monotonic() < end, found
        time.sleep(0.2)


def end_in_all_layers(user: User, azure: Azure) -> tuple[timedelta, str]:
    """How long after power-on the machine goes off and by which rule: tag, schedule and `lease` agree."""
    marks = azure.machine()["tags"]
    since, until = (datetime.fromisoformat(marks[f"gpuinfra:{name}"]) for name in ("on-since", "lease-until"))
    daily = azure.part(*SCHEDULE)["properties"]
    assert (daily["status"], daily["dailyRecurrence"]["time"]) == ("Enabled", f"{until + BACKSTOP:%H%M}")
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
    variants(
        pytest.param("1 USD", "2 USD", CAPS["2 USD"], "cost cap", id="raised-below-the-lease"),
        pytest.param("1 USD", "5 USD", LEASE, "lease", id="raised-beyond-the-lease"),
        pytest.param("1 USD", None, LEASE, "lease", id="removed"),
        pytest.param("5 USD", "1 USD", CAPS["1 USD"], "cost cap", id="lowered"),
        pytest.param(None, "2 USD", CAPS["2 USD"], "cost cap", id="added"),
    ),
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


def test_agent_follows_a_raised_max_cost(user: User, azure: Azure) -> None:
    user.spec(lifecycle={"lease": "4h", "maxCost": "1 USD"})
    first = datetime.fromisoformat(user.up()["leaseUntil"])
    assert agent(user, first)["cause"] == "cost cap"
    user.spec(lifecycle={"lease": "4h", "maxCost": "5 USD"})
    second = datetime.fromisoformat(user.up()["leaseUntil"])
    assert second > first
    assert agent(user, second)["cause"] == "lease over"
    assert "when its lease ends" in user("lease", "my-dsvm").stdout


def test_raised_max_cost_keeps_an_extended_lease(user: User, azure: Azure) -> None:
    user.spec(lifecycle={"lease": "1h", "maxCost": "2 USD"})
    user.up()
    user.does("lease", "my-dsvm", "--extend", "5h")
    assert end_in_all_layers(user, azure)[1] == "cost cap"
    user.spec(lifecycle={"lease": "1h", "maxCost": "5 USD"})
    user.up()
    found, _ = end_in_all_layers(user, azure)
    assert found.total_seconds() >= CAPS["2 USD"].total_seconds() - 60


# Started in the portal after the cap has ended the machine

MACHINE = "Microsoft.Compute/virtualMachines"
OUTSIDE = "lease is over; started or changed outside gpuinfra since then"


def advance(azure: Azure, length: timedelta) -> None:
    azure.control("POST", "clock", {"advance": length.total_seconds()})


def now(azure: Azure) -> datetime:
    return datetime.fromtimestamp(azure.control("GET", "clock")["now"], UTC)


def start_after_the_cap(user: User, azure: Azure) -> datetime:
    """Let the cap end the machine, then start it as a person does in the portal. Return when that was."""
    user.spec(lifecycle={"lease": "4h", "idle": "2h", "maxCost": "1 USD"})
    user.up()
    wait_for_agent(azure)
    advance(azure, CAPS["1 USD"] + timedelta(minutes=1))
    assert eventually(lambda: not azure.is_billed(), AGENT_SECONDS)
    advance(azure, timedelta(hours=3))
    # From here on the clock almost stands still: however long the guest takes to boot, it counts from this moment.
    azure.control("POST", "clock", {"speed": 0.01})
    status, body = azure.send("POST", f"{azure.id(MACHINE, 'my-dsvm')}/start")
    assert status == 202, body
    assert eventually(lambda: azure.machine()["powerState"] == "PowerState/running", AGENT_SECONDS)
    return now(azure)


def test_machine_started_in_the_portal_after_its_cap_ends_again(user: User, azure: Azure) -> None:
    started = start_after_the_cap(user, azure)
    end = started + CAPS["1 USD"]
    # The guest agent counts lease and cap from this start, and `lease` says the same.
    assert agent(user, end)["cause"] == "cost cap"
    shown = user.does("lease", "my-dsvm")
    outside = shown["startedOutside"]
    assert abs(datetime.fromisoformat(outside["at"]) - started) <= timedelta(minutes=1)
    assert abs(datetime.fromisoformat(outside["agentUntil"]) - end) <= timedelta(minutes=1)
    assert shown["capAt"] == outside["agentUntil"]
    (machine,) = user.does("status")["machines"]
    assert machine["drift"] == [OUTSIDE]
    (verdict,) = user.does("reap", "--dry-run")["stopped"]
    assert verdict["cause"] == OUTSIDE
    # Without Azure's schedule and without `reap`, the agent ends it.
    assert azure.send("DELETE", azure.id(*SCHEDULE))[0] == 200
    advance(azure, CAPS["1 USD"] + timedelta(minutes=1))
    assert eventually(lambda: not azure.is_billed(), AGENT_SECONDS)


def test_up_after_a_start_in_the_portal_begins_a_new_lease(user: User, azure: Azure) -> None:
    started = start_after_the_cap(user, azure)
    done = user("up", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert "has cost what it may" not in done.stdout + done.stderr
    length, cause = end_in_all_layers(user, azure)
    assert (length.total_seconds(), cause) == (about(CAPS["1 USD"]), "cost cap")
    since = datetime.fromisoformat(azure.machine()["tags"]["gpuinfra:on-since"])
    assert abs(since - started) <= timedelta(minutes=1)
    (machine,) = user.does("status")["machines"]
    assert machine["drift"] == []
    assert user.does("reap", "--dry-run")["stopped"] == []
