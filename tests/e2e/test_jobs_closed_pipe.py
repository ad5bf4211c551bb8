"""Readers of a job's output that leave before the job ends, as in `gpuinfra submit … | head -1`."""

import subprocess

import pytest

from tests.e2e.jobs import GATES, contents, ended, last_run, outputs_of, reads, share_of, shown, soon, spoken, started
from tests.e2e.run_help import guest_home, is_off, project, runs_of
from tests.e2e.user import User
from tests.lab import LOCAL, REMOTEDOCKER, Lab
from tests.program import Program

# It prints more when the reader has left.
TALKS = f"""{GATES}
print("begun")
gate("closed")
print("more")
open("outputs/partial", "w").write("partial")
gate("end")
"""


def closes(client: "subprocess.Popen[str]") -> None:
    """The reader leaves."""
    assert client.stdout is not None
    client.stdout.close()
    client.stdout = None


@pytest.mark.parametrize("name", [LOCAL, REMOTEDOCKER])
def test_submit_detaches_when_its_reader_leaves_and_says_how_to_return(lab: Lab, name: str) -> None:
    user = lab.user()
    with started(user, "submit", "-c", name, user.script(TALKS)) as client:
        reads(client, "begun\n")
        closes(client)
        (share_of(user, name) / "closed").touch()
        code, _, errors = ended(client)
    run = last_run(user)
    assert (code, run["state"]) == (130, "running"), errors
    assert "standard output was closed: the job keeps running" in errors
    assert f"gpuinfra logs {run['id']} -f" in errors
    (share_of(user, name) / "end").touch()
    assert spoken(user, "logs", run["id"], "-f")[:2] == (0, b"begun\nmore\n")
    assert contents(outputs_of(user, run["id"])) == {"partial": b"partial"}


def test_submit_cancels_when_its_reader_leaves_if_interrupts_cancel(lab: Lab) -> None:
    user = lab.user()
    with started(user, "submit", "--on-interrupt", "cancel", "-c", LOCAL, user.script(TALKS)) as client:
        reads(client, "begun\n")
        closes(client)
        (share_of(user, LOCAL) / "closed").touch()
        code, _, errors = ended(client)
    assert code not in {0, 255}, errors
    assert "standard output was closed: the job is cancelled" in errors
    assert shown(user)["state"] == "cancelled"


def test_submit_detaches_when_nothing_of_it_is_read(lab: Lab) -> None:
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
        closes(client)
        (share_of(user, LOCAL) / "closed").touch()
        assert client.wait(60) == 130
    assert last_run(user)["state"] == "running"
    user.does("cancel", "last", "--grace", "0s")


def test_run_follows_to_the_end_when_its_reader_leaves(user: User) -> None:
    project(user)
    with user.start("run", "gpu.yaml", "waits.py") as client:
        reads(client, "begun\n")
        closes(client)
        (guest_home(user.azure) / "go").touch()
        code, _, errors = ended(client)
    assert code == 0, errors
    assert "standard output was closed: the job is followed to its end" in errors
    assert runs_of(user)[0]["outputs"]["complete"]
    soon(lambda: is_off(user.azure), "a machine that is off")
