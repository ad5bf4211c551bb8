"""Jobs that somebody is there for, and jobs that the machine ends: as its agent sees the one and does the other."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.impatient import impatient
from tests.e2e.jobs import (
    ENDLESS,
    contents,
    ended,
    killed,
    last_run,
    outputs_of,
    reads,
    result,
    share_of,
    shown,
    soon,
    submitted,
)
from tests.lab import REMOTE, REMOTEDOCKER, Lab
from tests.sshd import eventually

CAREFUL = """
import signal, sys, time
def leave(*_):
    open("outputs/checkpoint", "w").write("half of it")
    print("left", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, leave)
print("begun", flush=True)
time.sleep(100)
"""

# It is asked to end, and goes on.
STUBBORN = """
import os, signal, time
asked = os.path.join(os.environ["AZUREML_NATIVE_SHARE_DIRECTORY"], "asked")
signal.signal(signal.SIGTERM, lambda *_: open(asked, "w").close())
print("begun", flush=True)
while True:
    time.sleep(100)
"""


def folder_of(lab: Lab, run: str) -> Path:
    return lab.home / ".gpuinfra" / "runs" / run


def said(lab: Lab, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder_of(lab, run) / "attended.json").read_text())
    return found


class Heart:
    """The beat of a client, as the agent hears it."""

    def __init__(self, lab: Lab, run: str) -> None:
        self._file = folder_of(lab, run) / "attended.json"

    def beats(self) -> bool:
        """Whether somebody says before long that they are there."""
        self.stop()
        return eventually(lambda: not self.is_still())

    def stop(self) -> None:
        """Forget the last beat."""
        os.utime(self._file, (1, 1))

    def is_still(self) -> bool:
        """Whether nobody has said so since."""
        return self._file.stat().st_mtime < 2


def ends_it(lab: Lab, run: str, how: str, detail: str) -> None:
    """What the guest agent does, shortly before it switches the machine off."""
    folder = folder_of(lab, run)
    (folder / "ending.json").write_text(json.dumps({"how": how, "detail": detail}))
    if (folder / "control").exists():
        (folder / "control").write_text("10\n")
    else:
        lab.engine.docker("stop", "--time", "10", f"gpuinfra-{run}")


def test_somebody_is_there_until_the_client_is_killed_and_then_whoever_follows(lab: Lab) -> None:
    user = lab.user()
    with impatient(user, "submit", "-c", REMOTE, user.script(ENDLESS)) as client:
        reads(client, "begun\n")
        run = last_run(user)["id"]
        heart = Heart(lab, run)
        assert said(lab, run) == {"afterRun": None}
        assert heart.beats()
        killed(client)
    # Nobody is connected who could say so.
    soon(lambda: lab.server.serving() == [], "no connection")
    heart.stop()
    assert last_run(user)["state"] == "running"
    assert heart.is_still()
    with impatient(user, "logs", run, "-f") as follower:
        reads(follower, "begun\n")
        assert heart.beats()
    assert user.does("cancel", run, "--grace", "0s")["run"]["state"] == "cancelled"
    assert not folder_of(lab, run).exists()


def test_whoever_lets_go_on_purpose_says_so(lab: Lab) -> None:
    user = lab.user()
    run = submitted(user, "-c", REMOTE, "--detach", user.script(ENDLESS))["id"]
    assert said(lab, run) == {"afterRun": None, "detached": True}
    with impatient(user, "logs", run, "-f") as follower:
        reads(follower, "begun\n")
        soon(lambda: said(lab, run) == {"afterRun": None}, "somebody who is there again")
    user.does("cancel", run, "--grace", "0s")
    with impatient(user, "submit", "-c", REMOTE, user.script(ENDLESS)) as client:
        reads(client, "begun\n")
        run = last_run(user)["id"]
        assert said(lab, run) == {"afterRun": None}
        client.send_signal(signal.SIGINT)
        assert ended(client)[0] == 130
    assert said(lab, run) == {"afterRun": None, "detached": True}
    user.does("cancel", run, "--grace", "0s")


def test_a_job_is_sent_by_somebody_who_is_there(lab: Lab) -> None:
    """Before anything is sent: a client that is killed then is noticed as well."""
    user = lab.user()
    (user.workspace / "data").write_bytes(os.urandom(64 << 20))
    with impatient(user, "submit", "-c", REMOTE, user.script(ENDLESS)) as client:
        soon(lambda: list((lab.home / ".gpuinfra" / "runs").glob("*/attended.json")) != [], "a client that is there")
        run = last_run(user)
        assert run["state"] == "preparing"
        assert said(lab, run["id"]) == {"afterRun": None}
        killed(client)


@pytest.mark.parametrize("name", [REMOTE, REMOTEDOCKER])
def test_a_job_that_the_machine_ends_while_somebody_follows(lab: Lab, name: str) -> None:
    user = lab.user()
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    with impatient(user, "submit", "--json", "-c", name, user.script(CAREFUL)) as client:
        soon(lambda: last_run(user).get("state") == "running", "a job that runs")
        run = last_run(user)["id"]
        soon(lambda: "begun" in user("logs", run).stdout, "a job that hears signals")
        ends_it(lab, run, "evicted", "Azure wants it back")
        code, out, errors = ended(client)
    found = result(out)
    assert (found["state"], found["exitCode"], code) == ("evicted", 7, 1), errors
    assert found["reason"] == "evicted: Azure wants it back"
    assert found["outputs"]["complete"]
    assert contents(outputs_of(user, run)) == {"checkpoint": b"half of it"}


def test_a_job_that_the_machine_ended_when_nobody_was_there(lab: Lab) -> None:
    user = lab.user()
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    run = submitted(user, "-c", REMOTEDOCKER, "--detach", user.script(CAREFUL))["id"]
    soon(lambda: "begun" in logs_of(lab, run), "its first line")
    ends_it(lab, run, "cost cap", "")
    soon(lambda: "ended" in json.loads((folder_of(lab, run) / "state.json").read_text()), "its end")
    assert user("outputs", run).returncode == 0
    found = shown(user, run)
    assert (found["state"], found["reason"], found["exitCode"]) == ("cancelled", "cost cap", 7)
    assert contents(outputs_of(user, run)) == {"checkpoint": b"half of it"}


def logs_of(lab: Lab, run: str) -> str:
    return str(lab.engine.docker("logs", f"gpuinfra-{run}").stdout)


@pytest.mark.parametrize("name", [REMOTE, REMOTEDOCKER])
def test_ctrl_c_again_while_a_job_has_its_time_to_end_ends_it_at_once(lab: Lab, name: str) -> None:
    user = lab.user()
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    words = ("submit", "--on-interrupt", "cancel", "-c", name, user.script(STUBBORN))
    # More than this test waits: whoever waits for the grace fails.
    with impatient(user, *words, patch={"gpuinfra.app.job_session.CANCEL_GRACE": 300.0}) as client:
        reads(client, "begun\n")
        client.send_signal(signal.SIGINT)
        soon((share_of(user, name) / "asked").exists, "a job that was asked to end")
        client.send_signal(signal.SIGINT)
        code, _, errors = ended(client)
    assert code == 130, errors
    run = last_run(user)["id"]
    state = folder_of(lab, run) / "state.json"
    soon(lambda: "ended" in json.loads(state.read_text()), "its end")
    assert user("outputs", run).returncode == 0
    assert (shown(user, run)["state"], shown(user, run)["exitCode"]) == ("cancelled", 137)


@pytest.mark.parametrize("name", [REMOTE, REMOTEDOCKER])
def test_a_machine_that_goes_off_before_anybody_can_write_down_how_the_job_ended(lab: Lab, name: str) -> None:
    """Whoever kept watch dies with the machine, the job too; when it is on again, the cause is found."""
    user = lab.user()
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    run = submitted(user, "-c", name, "--detach", user.script(ENDLESS))["id"]
    soon(lambda: contents(folder_of(lab, run) / "outputs") == {"partial": b"partial"}, "what it writes")
    (folder_of(lab, run) / "ending.json").write_text(json.dumps({"how": "evicted", "detail": ""}))
    lab.end_processes()
    if name == REMOTEDOCKER:
        lab.engine.docker("kill", f"gpuinfra-{run}")
    assert user("outputs", run).returncode == 0
    found = shown(user, run)
    assert (found["state"], found["reason"]) == ("evicted", "evicted")
    assert contents(outputs_of(user, run)) == {"partial": b"partial"}
    assert user("logs", run).stdout == "begun\n"
