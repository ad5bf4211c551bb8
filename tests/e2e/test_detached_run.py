"""After Ctrl-C and detach in `run`, the job finishes, and the guest agent deallocates the machine as announced."""

import json
import os
import signal
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.azure import Azure
from tests.e2e.jobs import open_terminal
from tests.e2e.run_help import WAITS, Start, guest_home, guest_root, is_off, project, run_job, runs_of
from tests.e2e.user import User
from tests.sshd import eventually
from tests.variants import variant

SECONDS = 120.0
# Longer than the agent waits for a client.
LONG_AGO = 3600.0


@pytest.fixture
def user(user: User) -> User:
    project(user)
    return user


def agent_state(azure: Azure) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((guest_root(azure) / "run" / "gpuinfra" / "agent.json").read_text())
    return found


def run_folder(azure: Azure, run: str) -> Path:
    return guest_home(azure) / ".gpuinfra" / "runs" / run


def client_state(azure: Azure, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_folder(azure, run) / "attended.json").read_text())
    return found


def age_heartbeat(azure: Azure, run: str) -> None:
    past = time.time() - LONG_AGO
    os.utime(run_folder(azure, run) / "attended.json", (past, past))


def end_long_ago(azure: Azure, run: str) -> None:
    """Make it look as if the job ended, and its client left, an hour ago."""
    file = run_folder(azure, run) / "state.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "ended": time.time() - LONG_AGO}))
    age_heartbeat(azure, run)


def detach_on_a_terminal(user: User) -> tuple[str, str]:
    """Start `run`, press Ctrl-C and detach; the run's id and what the terminal showed."""
    with open_terminal(user, "run", "gpu.yaml", "waits.py") as terminal:
        terminal.wait_for_text(b"begun")
        terminal.type_keys(b"\x03")
        terminal.wait_for_text(b"[d/c/g]")
        terminal.type_keys(b"d\r")
        assert terminal.wait_for_exit() == 130
    (run,) = runs_of(user)
    return str(run["id"]), terminal.seen.decode()


def test_detached_job_of_run_finishes_before_the_machine_goes_off(user: User, azure: Azure) -> None:
    azure.control("POST", "clock", {"speed": 5})  # the agent looks every five seconds of Azure's clock
    run, shown = detach_on_a_terminal(user)
    assert "when the job has finished, by its guest agent" in " ".join(shown.split())
    assert "is billed until" not in shown

    # The agent no longer waits for the client, only for the job.
    age_heartbeat(azure, run)
    assert eventually(lambda: agent_state(azure)["jobs"] == [run], SECONDS)
    looked = agent_state(azure)["at"]
    assert eventually(lambda: agent_state(azure)["at"] > looked, SECONDS)
    state = agent_state(azure)
    assert (state["action"], state["endsWith"], state["finishedUntil"]) == ("watching", [run], None)
    assert f"off when run {run} has ended" in user("status", "--agent").stdout

    (guest_home(azure) / "go").touch()
    assert eventually(lambda: agent_state(azure)["finishedUntil"] is not None, SECONDS)
    state = agent_state(azure)
    assert state["finishedUntil"] < state["until"]
    assert state["idleUntil"] is None or state["finishedUntil"] < state["idleUntil"]
    assert azure.machine()["powerState"] == "PowerState/running"
    shown = user("status", "--agent").stdout
    assert "(job finished)" in shown
    assert "if it stays so" not in shown

    end_long_ago(azure, run)
    assert eventually(lambda: is_off(azure), SECONDS)

    user.up()
    user.does("outputs", run)
    assert [each["state"] for each in runs_of(user)] == ["completed"]


@variant
def test_second_detached_job_has_its_whole_window_after_an_older_run(user: User, azure: Azure) -> None:
    azure.control("POST", "clock", {"speed": 5})
    (user.workspace / "second.py").write_text(WAITS.replace('"go"', '"go-second"'))
    first, _ = detach_on_a_terminal(user)
    assert user("submit", "-c", "my_dsvm", "--detach", "second.py").returncode == 0
    second = str(runs_of(user)[0]["id"])
    (guest_home(azure) / "go").touch()
    assert eventually(lambda: agent_state(azure)["jobs"] == [second], SECONDS)
    end_long_ago(azure, first)
    age_heartbeat(azure, second)

    (guest_home(azure) / "go-second").touch()
    assert eventually(lambda: agent_state(azure)["finishedUntil"] is not None, SECONDS)
    state = agent_state(azure)
    assert (state["action"], state["finishedUntil"] > state["at"]) == ("watching", True)
    assert azure.machine()["powerState"] == "PowerState/running"
    end_long_ago(azure, second)
    assert eventually(lambda: is_off(azure), SECONDS)


def test_detached_job_has_its_whole_window_after_its_log_was_followed(user: User, azure: Azure, start: Start) -> None:
    azure.control("POST", "clock", {"speed": 5})
    run, _ = detach_on_a_terminal(user)
    client = start("logs", "-f", run)
    client.until(lambda: not client_state(azure, run).get("detached"))
    client.send(signal.SIGINT)
    assert client.end() == 130
    age_heartbeat(azure, run)
    (guest_home(azure) / "go").touch()
    assert eventually(lambda: agent_state(azure)["finishedUntil"] is not None, SECONDS)
    state = agent_state(azure)
    assert (state["action"], state["finishedUntil"] > state["at"]) == ("watching", True)


def test_run_detaches_and_its_machine_goes_off_after_the_job(user: User, azure: Azure) -> None:
    azure.control("POST", "clock", {"speed": 5})
    document = run_job(user, "--detach", "--timeout", "3h", "gpu.yaml", "waits.py")
    run, stay = str(document["run"]["id"]), document["receipt"]["staysOn"]
    assert (document["run"]["state"], document["receipt"]["off"]) == ("running", False)
    assert (stay["reason"], stay["run"], stay["endedBy"]) == ("job", run, ["agent", "schedule"])
    left = (datetime.fromisoformat(stay["until"]) - datetime.fromisoformat(document["receipt"]["verifiedAt"])).seconds
    assert 3 * 3600 < left < 4 * 3600
    assert f"on for detached run {run}" in user("status").stdout
    (guest_home(azure) / "go").touch()
    assert eventually(lambda: agent_state(azure)["finishedUntil"] is not None, SECONDS)
    end_long_ago(azure, run)
    assert eventually(lambda: is_off(azure), SECONDS)


@variant
def test_agent_keeps_the_machine_on_for_a_look_if_a_detached_job_fails(user: User, azure: Azure) -> None:
    azure.control("POST", "clock", {"speed": 5})
    document = run_job(user, "--detach", "--keep-on-failure", "30m", "gpu.yaml", "waits.py", "3")
    run = str(document["run"]["id"])
    age_heartbeat(azure, run)
    (guest_home(azure) / "go").touch()
    assert eventually(lambda: agent_state(azure)["heldFor"] == run, SECONDS)
    state = agent_state(azure)
    assert (state["action"], state["finishedUntil"]) == ("watching", state["heldUntil"])
    assert f"for a look at failed run {run}" in user("status", "--agent").stdout
    end_long_ago(azure, run)
    assert eventually(lambda: is_off(azure), SECONDS)
