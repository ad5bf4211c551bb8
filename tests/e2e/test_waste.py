"""Whatever fails, a machine is off within the bound that its spec states: by the meter, which knows nothing of us.

Each story takes away one layer after the other: the client, the guest agent, Azure's schedule. Whoever is left ends it.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.impatient import impatient
from tests.e2e.run_help import SECONDS, Client, Start, guest_home, guest_root, project, runs_of, wait_until
from tests.e2e.user import User

MINUTE, HOUR = 60, 3600
LEASE = 2 * HOUR
# The agent looks every five seconds and gives jobs thirty to end; a lease ends on a whole minute.
AGENT = 120
REAPER = 15 * MINUTE
# Slow enough that the agent keeps up on a loaded machine: it forgets how long it was idle when it could not look for
# two minutes of Azure's time.
FAST = 10.0


@pytest.fixture
def user(user: User) -> User:
    project(user)
    return user


@pytest.fixture(autouse=True)
def at_its_own_pace(azure: Azure) -> Iterator[None]:
    yield
    azure.clear_faults()
    pace(azure, 1)


def pace(azure: Azure, speed: float) -> None:
    azure.control("POST", "clock", {"speed": speed})


def advance(azure: Azure, seconds: float) -> None:
    azure.control("POST", "clock", {"advance": seconds})


def now(azure: Azure) -> float:
    return float(azure.control("GET", "clock")["now"])


def billed(azure: Azure) -> float:
    """Seconds of all machines, as the meter has counted them."""
    return sum(float(machine["billedSeconds"]) for machine in azure.bill())


def until_off(azure: Azure) -> None:
    wait_until(lambda: not azure.is_billed(), "off")


def attended(azure: Azure, run: str) -> Path:
    """The client's sign of life on the machine."""
    return guest_home(azure) / ".gpuinfra" / "runs" / run / "attended.json"


def no_sign_of_life(azure: Azure, run: str) -> None:
    """A minute ago was the last one: the guest's clock is this computer's, and nobody wants to wait."""
    past = time.time() - 60
    os.utime(attended(azure, run), (past, past))


def agent_state(azure: Azure) -> dict[str, Any]:
    """What the agent says of itself; nothing before its first look."""
    file = guest_root(azure) / "run" / "gpuinfra" / "agent.json"
    return dict(json.loads(file.read_text())) if file.exists() else {"jobs": None, "lastError": None}


def kill_agent(user: User) -> None:
    done = user("ssh", "my-dsvm", "--", "sudo", "systemctl", "stop", "gpuinfra-agent")
    assert done.returncode == 0, done.stderr


def up(user: User, **lifecycle: Any) -> None:
    project(user, **lifecycle)
    user.up()


# The client is gone

KILLED: dict[str, tuple[dict[str, Any], str]] = {
    "nothing but the machine is accepted": ({"name": "hold-before", "method": "PUT", "type": "schedules"}, "reaper"),
    "its end is set, and nobody knows": ({"name": "hold-after", "method": "PUT", "type": "schedules"}, "schedule"),
    "the agent has no right yet": ({"name": "hold-before", "method": "PUT", "type": "roleAssignments"}, "schedule"),
    "the agent has its right": ({"name": "hold-after", "method": "PUT", "type": "roleAssignments"}, "agent"),
}
IDLE = 1 * MINUTE
BOUNDS = {"reaper": LEASE + REAPER, "schedule": LEASE, "agent": IDLE}


@pytest.mark.parametrize("moment", KILLED)
def test_the_client_is_killed_while_the_machine_is_made(user: User, azure: Azure, start: Start, moment: str) -> None:
    fault, layer = KILLED[moment]
    project(user, idle="1m" if layer == "agent" else "20h")
    azure.fault(**fault)
    client = start("run", "gpu.yaml", "quick.py")
    client.until_held()
    client.kill()
    azure.clear_faults()
    wait_until(azure.is_billed, "a machine that runs")
    match layer:
        case "agent":
            pace(azure, FAST)
            until_off(azure)
            pace(azure, 1)
        case "schedule":
            advance(azure, LEASE + 2 * MINUTE)
        case "reaper":
            advance(azure, LEASE + REAPER)
            assert azure.is_billed(), "nobody else knows of it"
            assert len(user.does("reap")["stopped"]) == 1
    assert not azure.is_billed()
    assert billed(azure) <= BOUNDS[layer] + AGENT


def test_the_client_is_killed_while_the_job_runs(user: User, azure: Azure, start: Start) -> None:
    client = start("run", "gpu.yaml", "waits.py")
    client.until_says("begun")
    client.kill()
    (run,) = runs_of(user)
    assert json.loads(attended(azure, run["id"]).read_text())["afterRun"] == "deallocate"
    no_sign_of_life(azure, run["id"])
    wait_until(lambda: agent_state(azure)["jobs"] == [run["id"]], "a job that the agent sees")
    assert azure.is_billed(), "it is at work"
    (guest_home(azure) / "go").touch()
    ended = now(azure)
    until_off(azure)
    assert now(azure) - ended < 75
    user.up()
    assert {each["name"] for each in user.does("outputs", run["id"])["files"]} == {"early.txt", "late.txt"}


def test_the_laptop_is_offline_when_the_job_ends(user: User, azure: Azure) -> None:
    with impatient(user, "run", "--json", "gpu.yaml", "waits.py") as client:
        wait_until(lambda: "running" in [run["state"] for run in runs_of(user)], "a job that runs")
        (run,) = runs_of(user)
        client.send_signal(signal.SIGSTOP)
        (guest_home(azure) / "go").touch()
        ended = now(azure)
        wait_until(lambda: agent_state(azure)["jobs"] == [], "the job's end")
        no_sign_of_life(azure, run["id"])
        until_off(azure)
        assert now(azure) - ended < 75
        # It wakes up, finds the machine off, and says so.
        client.send_signal(signal.SIGCONT)
        out, err = client.communicate(timeout=SECONDS)
    assert client.returncode not in {0, None}, out + err
    document = json.loads(out)
    assert document["receipt"]["verifiedBy"] == "PowerState/deallocated"
    assert document["run"]["outputs"]["complete"] is False
    user.up()
    assert {each["name"] for each in user.does("outputs", run["id"])["files"]} == {"early.txt", "late.txt"}


# One layer after the other is gone


def test_the_agent_is_killed(user: User, azure: Azure) -> None:
    up(user)
    kill_agent(user)
    advance(azure, LEASE + 2 * MINUTE)
    assert not azure.is_billed(), "Azure's schedule has ended it"
    assert billed(azure) <= LEASE + AGENT


def test_the_agent_is_killed_and_the_schedule_is_gone(user: User, azure: Azure) -> None:
    up(user)
    kill_agent(user)
    schedule = azure.id("Microsoft.DevTestLab/schedules", "shutdown-computevm-my-dsvm")
    assert azure.send("DELETE", schedule)[0] == 200
    advance(azure, LEASE + REAPER)
    assert azure.is_billed(), "nobody is left but the reaper"
    (receipt,) = user.does("reap")["stopped"]
    assert receipt["verifiedBy"] == "PowerState/deallocated"
    assert billed(azure) <= LEASE + REAPER + AGENT
    assert user.does("reap")["stopped"] == []


def test_a_machine_whose_schedule_cannot_be_set_is_not_left_on(user: User, azure: Azure) -> None:
    azure.fault("AuthorizationFailed", method="PUT", type="schedules", count=0)
    done = user("up", "gpu.yaml")
    assert done.returncode == 1, done.stderr
    assert not [each for each in azure.everything() if each.startswith("virtualMachines/")]
    assert not azure.is_billed()
    assert billed(azure) <= AGENT


def test_azure_fails_three_times_when_the_agent_wants_it_off(user: User, azure: Azure) -> None:
    up(user, lease="10m", idle="1h")
    azure.fault("InternalServerError", method="POST", type="virtualMachines", count=3)
    # The schedule would end it as well.
    assert azure.send("DELETE", azure.id("Microsoft.DevTestLab/schedules", "shutdown-computevm-my-dsvm"))[0] == 200
    advance(azure, 9 * MINUTE)
    pace(azure, FAST)
    until_off(azure)
    tries = [each for each in azure.requests() if each["path"].endswith("/deallocate")]
    assert [each["status"] for each in tries] == [500, 500, 500, 202]
    # It waits one, two and four seconds, of its own clock.
    assert billed(azure) <= 11 * MINUTE + AGENT + 10 * FAST


def test_the_agent_gets_no_token(user: User, azure: Azure) -> None:
    up(user, lease="10m", idle="1m")
    azure.fault("identity-refused", count=0)
    pace(azure, FAST)
    wait_until(lambda: bool(agent_state(azure)["lastError"]), "the agent says what is wrong")
    advance(azure, 9 * MINUTE)
    until_off(azure)
    assert not [each for each in azure.requests() if each["path"].endswith("/deallocate") and each["status"] == 202]
    assert billed(azure) <= 11 * MINUTE + AGENT


# The job, and the lease


def test_a_job_that_hangs_is_ended_by_the_lease_though_somebody_watches(user: User, azure: Azure) -> None:
    project(user, lease="5m", idle="1m")
    with impatient(user, "run", "--json", "gpu.yaml", "waits.py") as client:
        wait_until(lambda: "running" in [run["state"] for run in runs_of(user)], "a job that runs")
        # Not advanced: after a jump the agent cannot know that the job was idle, and the lease is renewed once more.
        pace(azure, FAST)
        until_off(azure)
        pace(azure, 1)
        out, err = client.communicate(timeout=SECONDS)
    assert billed(azure) <= 6 * MINUTE + AGENT
    assert client.returncode not in {0, None}, out + err
    assert json.loads(out)["receipt"]["verifiedBy"] == "PowerState/deallocated"
    user.up()
    (run,) = runs_of(user)
    assert [each["name"] for each in user.does("outputs", run["id"])["files"]] == ["early.txt"]
    (run,) = runs_of(user)
    assert (run["state"], run["reason"].startswith("lease over")) == ("cancelled", True), run


def test_a_lease_that_is_extended_while_the_job_runs(user: User, azure: Azure, start: Start) -> None:
    project(user, lease="1h", idle="1h")
    with Client(user, "run", "gpu.yaml", "waits.py") as client:
        client.until_says("begun")
        extended = user.does("lease", "my-dsvm", "--extend", "2h")
        advance(azure, 2 * HOUR)
        assert azure.is_billed(), "the lease was extended"
        assert client.process.poll() is None
        client.kill()
    assert extended["changed"] is True
    advance(azure, HOUR + 2 * MINUTE)
    assert not azure.is_billed()
    assert 3 * HOUR <= billed(azure) <= 3 * HOUR + 2 * MINUTE + AGENT


# Nights on which clocks change

NIGHTS = {
    # 23:30 of the evening before in Chicago, and 04:00 of the next day: an hour less, and an hour more.
    "spring": (datetime(2027, 3, 14, 5, 30, tzinfo=UTC), datetime(2027, 3, 14, 9, 0, tzinfo=UTC)),
    "autumn": (datetime(2027, 11, 7, 4, 30, tzinfo=UTC), datetime(2027, 11, 7, 10, 0, tzinfo=UTC)),
}


@pytest.mark.parametrize("night", NIGHTS)
def test_hours_on_a_night_on_which_clocks_change(user: User, azure: Azure, night: str) -> None:
    evening, ends = NIGHTS[night]
    advance(azure, evening.timestamp() - now(azure))
    hours = {"timezone": "America/Chicago", "on": "daily 00:00-04:00"}
    up(user, lease="1h", idle="12h", hours=hours)
    kill_agent(user)
    advance(azure, ends.timestamp() - now(azure) - MINUTE)
    assert azure.is_billed(), "hours hold it"
    advance(azure, 3 * MINUTE)
    assert not azure.is_billed()
    assert abs(billed(azure) - (ends - evening).total_seconds()) <= AGENT
