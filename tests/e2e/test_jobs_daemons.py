"""Processes that a job without a container starts in the background: they end with their run."""

import contextlib
import json
import os
import signal
from pathlib import Path

import pytest

from tests.e2e import jobs
from tests.lab import LOCAL, REMOTE, Lab
from tests.variants import variants

# It forks twice, with its own session, streams and environment, as a daemon does.
DAEMON = f"""{jobs.GATES}
if not os.fork():
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.execve(sys.executable, [sys.executable, "-c", '''
import os, time
with open("outputs/pid.new", "w") as file:
    file.write(str(os.getpid()))
os.rename("outputs/pid.new", "outputs/pid")
time.sleep(300)
'''], {{name: os.environ[name] for name in sys.argv[2:]}})
os.wait()
while not os.path.exists("outputs/pid"):
    time.sleep(0.01)
print("begun")
if sys.argv[1] != "nothing":
    gate(sys.argv[1])
"""


def is_running(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def folder_there(lab: Lab, home: Path, name: str, run: str) -> Path:
    """Return the folder of a run on its target."""
    return (home if name == LOCAL else lab.home) / ".gpuinfra" / "runs" / run


@pytest.mark.parametrize("name", variants(REMOTE, LOCAL))
def test_a_daemon_ends_with_a_job_that_exits(lab: Lab, name: str) -> None:
    user = lab.user()
    code, out, errors = jobs.run_for_bytes(user, "submit", "-c", name, user.script(DAEMON), "nothing")
    assert (code, out) == (0, b"begun\n"), errors
    run = jobs.show_run(user)
    assert run["state"] == "completed"
    assert not is_running(int((jobs.outputs_of(user, run["id"]) / "pid").read_text()))
    assert "1 process that the job left running was ended with it" in run["warnings"]
    assert b"left running" in errors


def test_a_daemon_ends_with_a_job_that_is_cancelled(lab: Lab) -> None:
    user = lab.user()
    with jobs.start_program(user, "submit", "-c", LOCAL, user.script(DAEMON), "never") as client:
        jobs.expect_line(client, "begun\n")
        assert user.does("cancel", "last", "--grace", "10s")["run"]["state"] == "cancelled"
        jobs.wait_for_exit(client)
    run = jobs.last_run(user)["id"]
    assert not is_running(int((jobs.outputs_of(user, run) / "pid").read_text()))


def test_a_daemon_ends_with_a_job_whose_supervisor_was_killed(lab: Lab) -> None:
    user = lab.user()
    with jobs.start_program(user, "submit", "-c", LOCAL, user.script(DAEMON), "never", "GPUINFRA_RUN_ID") as client:
        jobs.expect_line(client, "begun\n")
        there = folder_there(lab, user.home, LOCAL, jobs.last_run(user)["id"])
        pid = int((jobs.outputs_there(there) / "pid").read_text())
        os.kill(json.loads((there / "state.json").read_text())["supervisor"], signal.SIGKILL)
        jobs.wait_for_exit(client)
    assert jobs.last_run(user)["state"] == "lost"
    jobs.wait_for(lambda: not is_running(pid), "the end of the daemon")
