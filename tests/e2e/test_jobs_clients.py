"""Clients of jobs that come and go: killed, interrupted, detached, and back again. The job is the target's."""

import signal

import pytest

from tests.e2e.jobs import (
    ENDLESS,
    GATES,
    contents,
    ended,
    killed,
    last_run,
    on_terminal,
    outputs_of,
    reads,
    result,
    share_of,
    shown,
    soon,
    spoken,
    started,
    submitted,
)
from tests.lab import LOCAL, REMOTE, REMOTEDOCKER, TARGETS, Lab

PATIENT = f"""{GATES}
print("first line")
open("outputs/early", "w").write("early")
gate(sys.argv[1])
for number in range(1000):
    print(number)
open("outputs/late", "w").write("late" * 100000)
print("careful", file=sys.stderr)
sys.exit(3)
"""
PRINTED = "first line\n" + "".join(f"{number}\n" for number in range(1000))
WRITTEN = {"early": b"early", "late": b"late" * 100000}


@pytest.mark.parametrize("name", TARGETS)
def test_a_job_outlives_a_killed_client_and_is_picked_up(lab: Lab, name: str) -> None:
    user = lab.user()
    gate = f"killed-{name}"
    with started(user, "submit", "-c", name, user.script(PATIENT), gate) as client:
        reads(client, "first line\n")
        killed(client)
    found = last_run(user)
    assert (found["state"], found["exitCode"]) == ("running", None)
    # Two at once: one of them follows the job, and the other one follows that one.
    with started(user, "logs", "last", "-f") as one, started(user, "logs", found["id"], "-f") as other:
        reads(one, "first line\n")
        (share_of(user, name) / gate).touch()
        for follower, rest in ((one, PRINTED.partition("\n")[2]), (other, PRINTED)):
            code, out, errors = ended(follower)
            assert (code, out) == (3, rest), errors
            assert "careful\n" in errors
    after = last_run(user)
    assert (after["id"], after["state"], after["exitCode"]) == (found["id"], "failed", 3)
    assert after["outputs"]["complete"]
    assert contents(outputs_of(user, found["id"])) == WRITTEN


def test_detached_it_goes_on_and_is_brought_back_or_cancelled(lab: Lab) -> None:
    user = lab.user()
    run = submitted(user, "-c", REMOTEDOCKER, "--detach", user.script(PATIENT), "detached")
    assert run["state"] == "running"
    (share_of(user, REMOTEDOCKER) / "detached").touch()
    code, out, errors = spoken(user, "logs", run["id"], "-f")
    assert (code, out.decode()) == (3, PRINTED), errors
    for name in (REMOTEDOCKER, LOCAL):
        run = submitted(user, "-c", name, "-d", user.script(ENDLESS))
        soon(lambda: "partial" in user("outputs", "last", "--list").stdout, "its outputs")
        cancelled = user.does("cancel", "last", "--grace", "1s")["run"]
        assert (cancelled["id"], cancelled["state"]) == (run["id"], "cancelled")
        assert cancelled["outputs"]["complete"]
        assert contents(outputs_of(user, run["id"])) == {"partial": b"partial"}
        assert spoken(user, "logs", "last")[1] == b"begun\n"
    soon(lambda: lab.engine.containers() == [], "no container")  # nobody waits for its removal


def test_a_job_that_is_followed_is_cancelled_by_somebody_else(lab: Lab) -> None:
    user = lab.user()
    with started(user, "submit", "--json", "-c", REMOTEDOCKER, user.script(ENDLESS)) as client:
        soon(lambda: last_run(user).get("state") == "running", "a job that runs")
        assert user.does("cancel", "last", "--grace", "1s")["run"]["state"] == "cancelled"
        code, out, errors = ended(client)
    assert code not in {0, 255}, errors
    assert result(out)["state"] == "cancelled"


def test_cancelled_before_it_began_it_never_begins(lab: Lab) -> None:
    user = lab.user()
    with started(user, "submit", "-c", REMOTEDOCKER, user.script(ENDLESS)) as client:
        assert client.stderr is not None
        assert client.stderr.readline().startswith("project:")
        client.send_signal(signal.SIGSTOP)
        with started(user, "cancel", "last") as cancelling:
            soon(lambda: last_run(user)["reason"] == "cancelled", "a wish")
            client.send_signal(signal.SIGCONT)
            code, out, errors = ended(client)
            assert ended(cancelling)[0] == 0
    assert (code, out) == (1, ""), errors
    assert last_run(user)["state"] == "cancelled"
    soon(lambda: lab.engine.containers(name="gpuinfra-20") == [], "no container")


@pytest.mark.parametrize("name", [REMOTEDOCKER, REMOTE])
def test_the_time_is_up_though_nobody_is_connected(lab: Lab, name: str) -> None:
    user = lab.user()
    with started(user, "submit", "-c", name, "--timeout", "5s", user.script(ENDLESS)) as client:
        reads(client, "begun\n")
        killed(client)
    code, out, errors = spoken(user, "logs", "last", "-f")
    assert code not in {0, 255}, errors
    assert out == b"begun\n"
    run = shown(user)
    assert run["state"] == "timed-out"
    assert contents(outputs_of(user, run["id"])) == {"partial": b"partial"}


@pytest.mark.parametrize("name", [REMOTEDOCKER, LOCAL])
def test_ctrl_c_without_a_terminal(lab: Lab, name: str) -> None:
    user = lab.user()
    with started(user, "submit", "-c", name, user.script(ENDLESS)) as client:
        reads(client, "begun\n")
        client.send_signal(signal.SIGINT)
        code, _, errors = ended(client)
    assert code == 130, errors
    run = last_run(user)
    assert run["state"] == "running"
    assert f"gpuinfra logs {run['id']} -f" in errors
    assert user.does("cancel", run["id"], "--grace", "1s")["run"]["state"] == "cancelled"
    with started(user, "submit", "--on-interrupt", "cancel", "-c", name, user.script(ENDLESS)) as client:
        reads(client, "begun\n")
        client.send_signal(signal.SIGINT)
        code, _, errors = ended(client)
    assert code not in {0, 255}, errors
    run = last_run(user)
    assert run["state"] == "cancelled"
    assert contents(outputs_of(user, run["id"])) == {"partial": b"partial"}


@pytest.mark.parametrize("moment", ["project:", "upload:", "gpu:", "container"])
def test_ctrl_c_before_anybody_knows_that_it_runs(lab: Lab, moment: str) -> None:
    user = lab.user()

    def jobs() -> list[str]:
        return lab.engine.containers(name="gpuinfra-20")

    with started(user, "submit", "-c", REMOTEDOCKER, user.script(ENDLESS)) as client:
        assert client.stderr is not None
        if moment == "container":
            soon(lambda: jobs() != [], "a container")
        else:
            while not client.stderr.readline().startswith(moment):
                assert client.poll() is None
        client.send_signal(signal.SIGINT)
        code, _, errors = ended(client)
    assert code == 130, errors
    run = last_run(user)
    # It was cancelled, or begun and left: there is no job that nobody knows of.
    if run["state"] == "running":
        assert user.does("cancel", "last", "--grace", "1s")["run"]["state"] == "cancelled"
    assert last_run(user)["state"] == "cancelled"
    assert jobs() == []


def test_ctrl_c_on_a_terminal_is_a_question(lab: Lab) -> None:
    user = lab.user()
    script = user.script(f"{GATES}\nprint('begun')\ngate('more')\nprint('more to see')\ngate('never')\n")
    with on_terminal(user, "submit", "-c", REMOTEDOCKER, script) as terminal:
        terminal.waits_for(b"begun")
        terminal.types(b"\x03")
        terminal.waits_for(b"[d/c/g]")
        terminal.types(b"g\r")
        (share_of(user, REMOTEDOCKER) / "more").touch()
        terminal.waits_for(b"more to see")
        terminal.seen = b""
        terminal.types(b"\x03")
        terminal.waits_for(b"[d/c/g]")
        terminal.types(b"c\r")
        assert terminal.ends() not in {0, 255}
    assert last_run(user)["state"] == "cancelled"


@pytest.mark.parametrize("answer", [b"d\r", b"\x03", b"\x04"])
def test_whoever_leaves_the_question_leaves_the_job(lab: Lab, answer: bytes) -> None:
    user = lab.user()
    with on_terminal(user, "submit", "-c", LOCAL, user.script(ENDLESS)) as terminal:
        terminal.waits_for(b"begun")
        terminal.types(b"\x03")
        terminal.waits_for(b"[d]: ")
        terminal.types_until(answer, b"gpuinfra logs")
        assert terminal.ends() == 130
    assert last_run(user)["state"] == "running"
    user.does("cancel", "last", "--grace", "1s")
