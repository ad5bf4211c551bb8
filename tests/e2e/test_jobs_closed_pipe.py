"""Readers of a job's output that close the pipe before the job ends, as in `gpuinfra submit … | head -1`."""

import subprocess

import pytest

from tests.e2e import jobs
from tests.e2e.run_help import guest_home, is_off, project, runs_of
from tests.e2e.user import User
from tests.lab import LOCAL, REMOTEDOCKER, Lab
from tests.program import Program
from tests.variants import variants

# It prints more after the reader has closed the pipe.
TALKS = f"""{jobs.GATES}
print("begun")
gate("closed")
print("more")
open("outputs/partial", "w").write("partial")
gate("end")
"""


def close_output(client: "subprocess.Popen[str]") -> None:
    """Close the reading end of the pipe."""
    assert client.stdout is not None
    client.stdout.close()
    client.stdout = None


@pytest.mark.parametrize("name", variants(REMOTEDOCKER, LOCAL))
def test_submit_detaches_when_its_pipe_is_closed_and_says_how_to_return(lab: Lab, name: str) -> None:
    user = lab.user()
    with jobs.start_program(user, "submit", "-c", name, user.script(TALKS)) as client:
        jobs.expect_line(client, "begun\n")
        close_output(client)
        (jobs.shared_folder(user, name) / "closed").touch()
        code, _, errors = jobs.wait_for_exit(client)
    run = jobs.last_run(user)
    assert (code, run["state"]) == (130, "running"), errors
    assert "standard output was closed: the job keeps running" in errors
    assert f"gpuinfra logs {run['id']} -f" in errors
    (jobs.shared_folder(user, name) / "end").touch()
    assert jobs.run_for_bytes(user, "logs", run["id"], "-f")[:2] == (0, b"begun\nmore\n")
    assert jobs.read_tree(jobs.outputs_of(user, run["id"])) == {"partial": b"partial"}


def test_submit_cancels_when_its_pipe_is_closed_if_interrupts_cancel(lab: Lab) -> None:
    user = lab.user()
    with jobs.start_program(user, "submit", "--on-interrupt", "cancel", "-c", LOCAL, user.script(TALKS)) as client:
        jobs.expect_line(client, "begun\n")
        close_output(client)
        (jobs.shared_folder(user, LOCAL) / "closed").touch()
        code, _, errors = jobs.wait_for_exit(client)
    assert code not in {0, 255}, errors
    assert "standard output was closed: the job is cancelled" in errors
    assert jobs.show_run(user)["state"] == "cancelled"


def test_submit_detaches_when_its_output_is_not_read(lab: Lab) -> None:
    user = lab.user()
    with Program(
        "submit",
        "-c",
        LOCAL,
        user.script(TALKS),
        cwd=user.workspace,
        env=user.variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as client:
        assert client.stdout is not None
        while client.stdout.readline() != "begun\n":
            assert client.poll() is None
        close_output(client)
        (jobs.shared_folder(user, LOCAL) / "closed").touch()
        assert client.wait(60) == 130
    assert jobs.last_run(user)["state"] == "running"
    user.does("cancel", "last", "--grace", "0s")


def test_run_follows_to_the_end_when_its_pipe_is_closed(user: User) -> None:
    project(user)
    with user.start("run", "gpu.yaml", "waits.py") as client:
        jobs.expect_line(client, "begun\n")
        close_output(client)
        (guest_home(user.azure) / "go").touch()
        code, _, errors = jobs.wait_for_exit(client)
    assert code == 0, errors
    assert "standard output was closed: the job is followed to its end" in errors
    assert runs_of(user)[0]["outputs"]["complete"]
    jobs.wait_for(lambda: is_off(user.azure), "a machine that is off")
