"""Whatever fails, a machine is off within the time that its spec states, measured by the sandbox's meter.

Each test removes one more layer: the client, the guest agent, Azure's schedule. The next layer ends the machine.
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

from tests.e2e.azure import Azure, advance
from tests.e2e.impatient import start_impatient
from tests.e2e.run_help import (
    SECONDS,
    Client,
    Start,
    agent_state,
    guest_home,
    project,
    runs_of,
    wait_for_agent,
    wait_until,
)
from tests.e2e.user import REGION, User
from tests.variants import variant, variants

MINUTE, HOUR = 60, 3600
LEASE, BACKSTOP = 2 * HOUR, 35 * MINUTE
# The agent looks every five seconds and gives jobs thirty seconds to end; a lease ends on a whole minute.
AGENT = 120
REAPER = 15 * MINUTE
# Slow enough for the agent on a loaded machine: it forgets its idle time after a gap of
# two minutes of Azure's time between looks.
FAST = 10.0


@pytest.fixture
def user(user: User) -> User:
    project(user)
    return user


@pytest.fixture(autouse=True)
def restore_pace(azure: Azure) -> Iterator[None]:
    yield
    azure.clear_faults()
    pace(azure, 1)


def pace(azure: Azure, speed: float) -> None:
    azure.control("POST", "clock", {"speed": speed})


def now(azure: Azure) -> float:
    return float(azure.control("GET", "clock")["now"])


def billed(azure: Azure) -> float:
    """Return the billed seconds of all machines."""
    return sum(float(machine["billedSeconds"]) for machine in azure.bill())


def until_off(azure: Azure) -> None:
    wait_until(lambda: not azure.is_billed(), "off")


def until_idle(azure: Azure) -> None:
    """Wait until the agent counts the time without activity: then the clock can be advanced."""
    wait_until(lambda: bool(agent_state(azure).get("idleSince")), "an idle machine that the agent sees")


def heartbeat_file(azure: Azure, run: str) -> Path:
    """Return the client's heartbeat file on the machine."""
    return guest_home(azure) / ".gpuinfra" / "runs" / run / "attended.json"


def age_heartbeat(azure: Azure, run: str) -> None:
    """Date the last heartbeat one minute back: the guest uses this computer's clock, and the test must not wait."""
    past = time.time() - 60
    os.utime(heartbeat_file(azure, run), (past, past))


def kill_agent(user: User) -> None:
    done = user("ssh", "my-dsvm", "--", "sudo", "systemctl", "stop", "gpuinfra-agent")
    assert done.returncode == 0, done.stderr


def up(user: User, **lifecycle: Any) -> None:
    project(user, **lifecycle)
    user.up()


# Without the client

KILLED: dict[str, tuple[dict[str, Any], str]] = {
    "only the machine is accepted": ({"name": "hold-before", "method": "PUT", "type": "schedules"}, "reaper"),
    "the schedule is set": ({"name": "hold-after", "method": "PUT", "type": "schedules"}, "schedule"),
    "the agent has no role yet": ({"name": "hold-before", "method": "PUT", "type": "roleAssignments"}, "schedule"),
    "the agent has its role": ({"name": "hold-after", "method": "PUT", "type": "roleAssignments"}, "agent"),
}
IDLE = 1 * MINUTE
BOUNDS = {"reaper": LEASE + REAPER, "schedule": LEASE + BACKSTOP, "agent": IDLE}


@pytest.mark.parametrize("moment", KILLED)
def test_machine_goes_off_when_the_client_is_killed_during_its_creation(
    user: User, azure: Azure, start: Start, moment: str
) -> None:
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
            until_idle(azure)
            advance(azure, IDLE)
            until_off(azure)
        case "schedule":
            advance(azure, LEASE + BACKSTOP + 2 * MINUTE)
        case "reaper":
            advance(azure, LEASE + REAPER)
            assert azure.is_billed(), "no other layer exists yet"
            assert len(user.does("reap")["stopped"]) == 1
    assert not azure.is_billed()
    assert billed(azure) <= BOUNDS[layer] + AGENT


def test_agent_deallocates_after_the_job_of_a_killed_client(user: User, azure: Azure, start: Start) -> None:
    client = start("run", "gpu.yaml", "waits.py")
    client.until_says("begun")
    client.kill()
    (run,) = runs_of(user)
    assert json.loads(heartbeat_file(azure, run["id"]).read_text())["afterRun"] == "deallocate"
    age_heartbeat(azure, run["id"])
    wait_until(lambda: agent_state(azure).get("jobs") == [run["id"]], "a job that the agent sees")
    assert azure.is_billed(), "the job runs"
    (guest_home(azure) / "go").touch()
    ended = now(azure)
    until_off(azure)
    assert now(azure) - ended < 75
    user.up()
    assert {each["name"] for each in user.does("outputs", run["id"])["files"]} == {"early.txt", "late.txt"}


@variant
def test_agent_deallocates_after_the_job_of_an_offline_client(user: User, azure: Azure) -> None:
    with start_impatient(user, "run", "--json", "gpu.yaml", "waits.py") as client:
        wait_until(lambda: "running" in [run["state"] for run in runs_of(user)], "a job that runs")
        (run,) = runs_of(user)
        client.send_signal(signal.SIGSTOP)
        (guest_home(azure) / "go").touch()
        ended = now(azure)
        wait_until(lambda: agent_state(azure).get("jobs") == [], "the job's end")
        age_heartbeat(azure, run["id"])
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


# Without one layer after the other


def test_schedule_deallocates_when_the_agent_is_killed(user: User, azure: Azure) -> None:
    up(user)
    kill_agent(user)
    advance(azure, LEASE + BACKSTOP + 2 * MINUTE)
    assert not azure.is_billed(), "Azure's schedule has ended it"
    assert billed(azure) <= LEASE + BACKSTOP + AGENT


def test_reap_deallocates_when_agent_and_schedule_are_gone(user: User, azure: Azure) -> None:
    up(user)
    kill_agent(user)
    schedule = azure.id("Microsoft.DevTestLab/schedules", "shutdown-computevm-my-dsvm")
    assert azure.send("DELETE", schedule)[0] == 200
    advance(azure, LEASE + REAPER)
    assert azure.is_billed(), "only the reaper is left"
    (receipt,) = user.does("reap")["stopped"]
    assert receipt["verifiedBy"] == "PowerState/deallocated"
    assert billed(azure) <= LEASE + REAPER + AGENT
    assert user.does("reap")["stopped"] == []


REFUSED: list[dict[str, Any]] = [
    {"name": "RequestDisallowedByPolicy", "method": "PUT", "type": "schedules", "count": 0},
    {"name": "no-schedules", "region": REGION},
]


@pytest.mark.parametrize("refusal", variants(*REFUSED), ids=lambda each: each["name"])
def test_machine_without_a_schedule_is_ended_by_its_agent(user: User, azure: Azure, refusal: dict[str, Any]) -> None:
    project(user, lease="10m", idle="1h")
    azure.fault(**refusal)
    is_known = refusal["name"] == "no-schedules"
    assert ("does not offer Azure's daily schedule" in user("plan", "gpu.yaml").stderr) is is_known
    done = user("up", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert "schedule is refused (RequestDisallowedByPolicy)" in done.stderr or is_known
    assert not [each for each in azure.everything() if each.startswith("schedules/")]
    # A lease is extended without a schedule, too.
    assert user.does("lease", "my-dsvm", "--extend", "10m")["changed"]
    until = datetime.fromisoformat(azure.machine()["tags"]["gpuinfra:lease-until"]).timestamp()
    wait_for_agent(azure)
    # The clock almost stands still: however long the agent takes, it is two minutes before the end.
    pace(azure, 0.01)
    advance(azure, until - 2 * MINUTE - now(azure))
    assert azure.is_billed()
    pace(azure, 1)
    advance(azure, until - now(azure))
    until_off(azure)
    assert billed(azure) <= 21 * MINUTE + AGENT


@pytest.mark.parametrize("refusal", variants(*REFUSED), ids=lambda each: each["name"])
def test_machine_that_neither_schedule_nor_agent_ends_is_deleted(
    user: User, azure: Azure, refusal: dict[str, Any]
) -> None:
    azure.fault(**refusal)
    azure.fault("AuthorizationFailed", method="PUT", type="roleAssignments", count=0)
    done = user("up", "gpu.yaml")
    assert done.returncode == 1, done.stderr
    assert not [each for each in azure.everything() if each.startswith("virtualMachines/")]
    assert not azure.is_billed()
    assert billed(azure) <= AGENT


def test_agent_ends_a_machine_of_a_sovereign_cloud(user: User, azure: Azure) -> None:
    azure.fault("us-government")
    up(user, lease="10m", idle="1h")
    assert azure.send("DELETE", azure.id("Microsoft.DevTestLab/schedules", "shutdown-computevm-my-dsvm"))[0] == 200
    wait_for_agent(azure)
    advance(azure, 11 * MINUTE)
    until_off(azure)
    assert billed(azure) <= 12 * MINUTE + AGENT


@variant
def test_agent_retries_when_azure_fails_three_times(user: User, azure: Azure) -> None:
    up(user, lease="10m", idle="1h")
    azure.fault("InternalServerError", method="POST", type="virtualMachines", count=3)
    # The schedule would end it too.
    assert azure.send("DELETE", azure.id("Microsoft.DevTestLab/schedules", "shutdown-computevm-my-dsvm"))[0] == 200
    wait_for_agent(azure)
    advance(azure, 11 * MINUTE)
    until_off(azure)
    tries = [each for each in azure.requests() if each["path"].endswith("/deallocate")]
    assert [each["status"] for each in tries] == [500, 500, 500, 202]
    # It waits one, two and four seconds.
    assert billed(azure) <= 11 * MINUTE + AGENT + 10


def test_schedule_deallocates_when_the_agent_gets_no_token(user: User, azure: Azure) -> None:
    up(user, lease="10m", idle="1m")
    azure.fault("identity-refused", count=0)
    until_idle(azure)
    advance(azure, MINUTE)
    wait_until(lambda: bool(agent_state(azure).get("lastError")), "the agent says what is wrong")
    advance(azure, 10 * MINUTE + BACKSTOP)
    until_off(azure)
    assert not [each for each in azure.requests() if each["path"].endswith("/deallocate") and each["status"] == 202]
    assert billed(azure) <= 11 * MINUTE + BACKSTOP + AGENT


# Job and lease


def test_lease_ends_a_hanging_job_that_a_client_follows(user: User, azure: Azure) -> None:
    project(user, lease="5m", idle="1m")
    with start_impatient(user, "run", "--json", "gpu.yaml", "waits.py") as client:
        wait_until(lambda: "running" in [run["state"] for run in runs_of(user)], "a job that runs")
        # Not advanced: after a jump the agent cannot know the idle time of the job, and the lease is renewed once more.
        pace(azure, FAST)
        until_off(azure)
        pace(azure, 1)
        out, err = client.communicate(timeout=SECONDS)
    # Agent and client need time of this computer, which may be busy, to see the end and to act.
    assert billed(azure) <= 6 * MINUTE + AGENT + 30 * FAST
    assert client.returncode not in {0, None}, out + err
    assert json.loads(out)["receipt"]["verifiedBy"] == "PowerState/deallocated"
    user.up()
    (run,) = runs_of(user)
    assert [each["name"] for each in user.does("outputs", run["id"])["files"]] == ["early.txt"]
    (run,) = runs_of(user)
    assert (run["state"], run["reason"].startswith("lease over")) == ("cancelled", True), run


def test_extended_lease_keeps_a_running_job_on(user: User, azure: Azure, start: Start) -> None:
    project(user, lease="1h", idle="1h")
    with Client(user, "run", "gpu.yaml", "waits.py") as client:
        client.until_says("begun")
        extended = user.does("lease", "my-dsvm", "--extend", "2h")
        advance(azure, 2 * HOUR)
        assert azure.is_billed(), "the lease was extended"
        assert client.process.poll() is None
        client.kill()
    assert extended["changed"] is True
    advance(azure, HOUR + MINUTE)
    until_off(azure)
    # The lease counts from the moment before the machine is created, the bill from its creation.
    (machine,) = azure.bill()
    on = next(each["from"] for each in machine["timeline"] if each["state"] in {"starting", "running"})
    bound = int((datetime.fromisoformat(extended["leaseUntil"]) - datetime.fromisoformat(on)).total_seconds())
    assert bound <= billed(azure) <= bound + MINUTE + AGENT


# Daylight saving

NIGHTS = {
    # 23:30 of the evening before in Chicago, and 04:00 of the next day: an hour less, and an hour more.
    "spring": (datetime(2027, 3, 14, 5, 30, tzinfo=UTC), datetime(2027, 3, 14, 9, 0, tzinfo=UTC)),
    "autumn": (datetime(2027, 11, 7, 4, 30, tzinfo=UTC), datetime(2027, 11, 7, 10, 0, tzinfo=UTC)),
}


@pytest.mark.parametrize("night", variants(*NIGHTS))
def test_hours_follow_a_daylight_saving_change(user: User, azure: Azure, night: str) -> None:
    evening, ends = NIGHTS[night]
    advance(azure, evening.timestamp() - now(azure))
    hours = {"timezone": "America/Chicago", "on": "daily 00:00-04:00"}
    up(user, lease="1h", idle="12h", hours=hours)
    kill_agent(user)
    advance(azure, ends.timestamp() - now(azure) - MINUTE)
    assert azure.is_billed(), "hours keep it on"
    assert azure.machine()["tags"]["gpuinfra:lease-until"] == f"{ends:%Y-%m-%dT%H:%M:%SZ}"
    # The agent is gone, so Azure's schedule ends it.
    advance(azure, BACKSTOP + 3 * MINUTE)
    assert not azure.is_billed()
    assert abs(billed(azure) - (ends - evening).total_seconds() - BACKSTOP) <= AGENT
