"""Heartbeats of clients, and jobs that the guest agent ends."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from gpuinfra.runner.log import LogFile
from tests.e2e import jobs
from tests.e2e.impatient import start_impatient
from tests.lab import REMOTE, REMOTEDOCKER, Lab
from tests.sshd import eventually
from tests.variants import variants

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

# It records SIGTERM in a file, and keeps running.
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


def client_state(lab: Lab, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder_of(lab, run) / "attended.json").read_text())
    return found


class Heartbeat:
    """The heartbeat of a client, as the agent sees it."""

    def __init__(self, lab: Lab, run: str) -> None:
        self._file = folder_of(lab, run) / "attended.json"

    def beats(self) -> bool:
        """Return whether a heartbeat arrives soon."""
        self.stop()
        return eventually(lambda: not self.is_still())

    def stop(self) -> None:
        """Forget the last heartbeat."""
        os.utime(self._file, (1, 1))

    def is_still(self) -> bool:
        """Return whether no heartbeat has arrived since."""
        return self._file.stat().st_mtime < 2


def end_job(lab: Lab, run: str, how: str, detail: str) -> None:
    """End a job as the guest agent does, shortly before it deallocates the machine, with time for a busy computer."""
    folder = folder_of(lab, run)
    (folder / "ending.json").write_text(json.dumps({"how": how, "detail": detail}))
    if (folder / "control").exists():
        (folder / "control").write_text("60\n")
    else:
        lab.engine.docker("stop", "--time", "60", f"gpuinfra-{run}")


def test_heartbeat_stops_with_a_killed_client_and_resumes_with_a_follower(lab: Lab) -> None:
    user = lab.user()
    with start_impatient(user, "submit", "-c", REMOTE, user.script(jobs.ENDLESS)) as client:
        jobs.expect_line(client, "begun\n")
        run = jobs.last_run(user)["id"]
        heartbeat = Heartbeat(lab, run)
        assert client_state(lab, run) == {"afterRun": None}
        assert heartbeat.beats()
        jobs.kill_program(client)
    # No connected client could report that.
    jobs.wait_for(lambda: lab.server.serving() == [], "no connection")
    heartbeat.stop()
    assert jobs.last_run(user)["state"] == "running"
    assert heartbeat.is_still()
    with start_impatient(user, "logs", run, "-f") as follower:
        jobs.expect_line(follower, "begun\n")
        assert heartbeat.beats()
    assert user.does("cancel", run, "--grace", "0s")["run"]["state"] == "cancelled"
    assert not folder_of(lab, run).exists()


def test_detach_is_recorded_on_the_machine(lab: Lab) -> None:
    user = lab.user()
    run = jobs.submit_job(user, "-c", REMOTE, "--detach", user.script(jobs.ENDLESS))["id"]
    assert client_state(lab, run) == {"afterRun": None, "detached": True}
    with start_impatient(user, "logs", run, "-f") as follower:
        jobs.expect_line(follower, "begun\n")
        jobs.wait_for(lambda: client_state(lab, run) == {"afterRun": None}, "a follower")
    user.does("cancel", run, "--grace", "0s")
    with start_impatient(user, "submit", "-c", REMOTE, user.script(jobs.ENDLESS)) as client:
        jobs.expect_line(client, "begun\n")
        run = jobs.last_run(user)["id"]
        assert client_state(lab, run) == {"afterRun": None}
        client.send_signal(signal.SIGINT)
        assert jobs.wait_for_exit(client)[0] == 130
    assert client_state(lab, run) == {"afterRun": None, "detached": True}
    user.does("cancel", run, "--grace", "0s")


def test_heartbeat_begins_before_the_project_is_sent(lab: Lab) -> None:
    """The heartbeat starts before the upload, so the agent also notices a client that is killed during it."""
    user = lab.user()
    (user.workspace / "data").write_bytes(os.urandom(64 << 20))
    with start_impatient(user, "submit", "-c", REMOTE, user.script(jobs.ENDLESS)) as client:
        jobs.wait_for(
            lambda: list((lab.home / ".gpuinfra" / "runs").glob("*/attended.json")) != [], "a client that is there"
        )
        run = jobs.last_run(user)
        assert run["state"] == "preparing"
        assert client_state(lab, run["id"]) == {"afterRun": None}
        jobs.kill_program(client)


@pytest.mark.parametrize("name", variants(REMOTE, REMOTEDOCKER))
def test_followed_job_reports_why_the_machine_ended_it(lab: Lab, name: str) -> None:
    user = lab.user()
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    with start_impatient(user, "submit", "--json", "-c", name, user.script(CAREFUL)) as client:
        jobs.wait_for(lambda: jobs.last_run(user).get("state") == "running", "a job that runs")
        run = jobs.last_run(user)["id"]
        jobs.wait_for(lambda: "begun" in user("logs", run).stdout, "a job that hears signals")
        end_job(lab, run, "evicted", "Azure wants it back")
        code, out, errors = jobs.wait_for_exit(client)
    found = jobs.run_in_output(out)
    assert (found["state"], found["exitCode"], code) == ("evicted", 7, 1), errors
    assert found["reason"] == "evicted: Azure wants it back"
    assert found["outputs"]["complete"]
    assert jobs.read_tree(jobs.outputs_of(user, run)) == {"checkpoint": b"half of it"}


def test_unfollowed_job_records_why_the_machine_ended_it(lab: Lab) -> None:
    user = lab.user()
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    run = jobs.submit_job(user, "-c", REMOTEDOCKER, "--detach", user.script(CAREFUL))["id"]
    jobs.wait_for(lambda: "begun" in container_logs(lab, run), "its first line")
    end_job(lab, run, "cost cap", "")
    jobs.wait_for(lambda: "ended" in json.loads((folder_of(lab, run) / "state.json").read_text()), "its end")
    assert user("outputs", run).returncode == 0
    found = jobs.show_run(user, run)
    assert (found["state"], found["reason"], found["exitCode"]) == ("cancelled", "cost cap", 7)
    assert jobs.read_tree(jobs.outputs_of(user, run)) == {"checkpoint": b"half of it"}


def container_logs(lab: Lab, run: str) -> str:
    return str(lab.engine.docker("logs", f"gpuinfra-{run}").stdout)


@pytest.mark.parametrize("name", variants(REMOTE, REMOTEDOCKER))
def test_second_ctrl_c_ends_a_job_during_its_grace_period(lab: Lab, name: str) -> None:
    user = lab.user()
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    words = ("submit", "--on-interrupt", "cancel", "-c", name, user.script(STUBBORN))
    # Longer than this test waits: a client that waits for the grace period fails.
    with start_impatient(user, *words, patch={"gpuinfra.app.job_session.CANCEL_GRACE": 300.0}) as client:
        jobs.expect_line(client, "begun\n")
        client.send_signal(signal.SIGINT)
        jobs.wait_for((jobs.shared_folder(user, name) / "asked").exists, "a job that was asked to end")
        client.send_signal(signal.SIGINT)
        code, _, errors = jobs.wait_for_exit(client)
    assert code == 130, errors
    run = jobs.last_run(user)["id"]
    state = folder_of(lab, run) / "state.json"
    jobs.wait_for(lambda: "ended" in json.loads(state.read_text()), "its end")
    assert user("outputs", run).returncode == 0
    assert (jobs.show_run(user, run)["state"], jobs.show_run(user, run)["exitCode"]) == ("cancelled", 137)


@pytest.mark.parametrize("name", variants(REMOTE, REMOTEDOCKER))
def test_reason_is_known_after_the_machine_went_off_before_the_job_ended(lab: Lab, name: str) -> None:
    """Supervisor and job end with the machine; the cause is found when it is on again."""
    user = lab.user()
    user.compute(REMOTEDOCKER, nvidiaDocker=False)
    run = jobs.submit_job(user, "-c", name, "--detach", user.script(jobs.ENDLESS))["id"]
    written = jobs.outputs_there(folder_of(lab, run))
    jobs.wait_for(lambda: jobs.read_tree(written) == {"partial": b"partial"}, "what it writes")
    if name == REMOTE:  # its supervisor writes the log, and dies with the machine
        log = LogFile(folder_of(lab, run) / "log")
        jobs.wait_for(lambda: b"".join(frame.data for frame in log.frames()) == b"begun\n", "its first line")
    (folder_of(lab, run) / "ending.json").write_text(json.dumps({"how": "evicted", "detail": ""}))
    lab.end_processes()
    if name == REMOTEDOCKER:
        lab.engine.docker("kill", f"gpuinfra-{run}")
    assert user("outputs", run).returncode == 0
    found = jobs.show_run(user, run)
    assert (found["state"], found["reason"]) == ("evicted", "evicted")
    assert jobs.read_tree(jobs.outputs_of(user, run)) == {"partial": b"partial"}
    assert user("logs", run).stdout == "begun\n"
