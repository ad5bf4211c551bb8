"""Clients of jobs that are killed, interrupted, detached and return. The job runs on independently."""

import signal

import pytest

from tests.e2e.jobs import (
    ENDLESS,
    GATES,
    expect_line,
    kill_program,
    last_run,
    open_terminal,
    outputs_of,
    read_tree,
    run_for_bytes,
    run_in_output,
    shared_folder,
    show_run,
    start_program,
    submit_job,
    wait_for,
    wait_for_exit,
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
def test_job_outlives_a_killed_client_and_can_be_followed_again(lab: Lab, name: str) -> None:
    user = lab.user()
    gate = f"killed-{name}"
    with start_program(user, "submit", "-c", name, user.script(PATIENT), gate) as client:
        expect_line(client, "first line\n")
        kill_program(client)
    found = last_run(user)
    assert (found["state"], found["exitCode"]) == ("running", None)
    # Two at once: one follows the job, and the other follows the first one's log.
    with start_program(user, "logs", "last", "-f") as one, start_program(user, "logs", found["id"], "-f") as other:
        expect_line(one, "first line\n")
        (shared_folder(user, name) / gate).touch()
        for follower, rest in ((one, PRINTED.partition("\n")[2]), (other, PRINTED)):
            code, out, errors = wait_for_exit(follower)
            assert (code, out) == (3, rest), errors
            assert "careful\n" in errors
    after = last_run(user)
    assert (after["id"], after["state"], after["exitCode"]) == (found["id"], "failed", 3)
    assert after["outputs"]["complete"]
    assert read_tree(outputs_of(user, found["id"])) == WRITTEN


def test_detached_job_can_be_fetched_or_cancelled(lab: Lab) -> None:
    user = lab.user()
    run = submit_job(user, "-c", REMOTEDOCKER, "--detach", user.script(PATIENT), "detached")
    assert run["state"] == "running"
    (shared_folder(user, REMOTEDOCKER) / "detached").touch()
    code, out, errors = run_for_bytes(user, "logs", run["id"], "-f")
    assert (code, out.decode()) == (3, PRINTED), errors
    for name in (REMOTEDOCKER, LOCAL):
        run = submit_job(user, "-c", name, "-d", user.script(ENDLESS))
        wait_for(lambda: "partial" in user("outputs", "last", "--list").stdout, "its outputs")
        cancelled = user.does("cancel", "last", "--grace", "1s")["run"]
        assert (cancelled["id"], cancelled["state"]) == (run["id"], "cancelled")
        assert cancelled["outputs"]["complete"]
        assert read_tree(outputs_of(user, run["id"])) == {"partial": b"partial"}
        assert run_for_bytes(user, "logs", "last")[1] == b"begun\n"
    wait_for(lambda: lab.engine.containers() == [], "no container")  # nothing waits for its removal


def test_followed_job_can_be_cancelled_by_another_client(lab: Lab) -> None:
    user = lab.user()
    with start_program(user, "submit", "--json", "-c", REMOTEDOCKER, user.script(ENDLESS)) as client:
        wait_for(lambda: last_run(user).get("state") == "running", "a job that runs")
        assert user.does("cancel", "last", "--grace", "1s")["run"]["state"] == "cancelled"
        code, out, errors = wait_for_exit(client)
    assert code not in {0, 255}, errors
    assert run_in_output(out)["state"] == "cancelled"


def test_job_cancelled_before_it_started_never_starts(lab: Lab) -> None:
    user = lab.user()
    with start_program(user, "submit", "-c", REMOTEDOCKER, user.script(ENDLESS)) as client:
        assert client.stderr is not None
        assert client.stderr.readline().startswith("project:")
        client.send_signal(signal.SIGSTOP)
        with start_program(user, "cancel", "last") as cancelling:
            wait_for(lambda: last_run(user)["reason"] == "cancelled", "a recorded cancel")
            client.send_signal(signal.SIGCONT)
            code, out, errors = wait_for_exit(client)
            assert wait_for_exit(cancelling)[0] == 0
    assert (code, out) == (1, ""), errors
    assert last_run(user)["state"] == "cancelled"
    wait_for(lambda: lab.engine.containers(name="gpuinfra-20") == [], "no container")


@pytest.mark.parametrize("name", [REMOTEDOCKER, REMOTE])
def test_timeout_applies_without_a_connected_client(lab: Lab, name: str) -> None:
    user = lab.user()
    with start_program(user, "submit", "-c", name, "--timeout", "5s", user.script(ENDLESS)) as client:
        expect_line(client, "begun\n")
        kill_program(client)
    code, out, errors = run_for_bytes(user, "logs", "last", "-f")
    assert code not in {0, 255}, errors
    assert out == b"begun\n"
    run = show_run(user)
    assert run["state"] == "timed-out"
    assert read_tree(outputs_of(user, run["id"])) == {"partial": b"partial"}


@pytest.mark.parametrize("name", [REMOTEDOCKER, LOCAL])
def test_ctrl_c_without_a_terminal_detaches_or_cancels(lab: Lab, name: str) -> None:
    user = lab.user()
    with start_program(user, "submit", "-c", name, user.script(ENDLESS)) as client:
        expect_line(client, "begun\n")
        client.send_signal(signal.SIGINT)
        code, _, errors = wait_for_exit(client)
    assert code == 130, errors
    run = last_run(user)
    assert run["state"] == "running"
    assert f"gpuinfra logs {run['id']} -f" in errors
    assert user.does("cancel", run["id"], "--grace", "1s")["run"]["state"] == "cancelled"
    with start_program(user, "submit", "--on-interrupt", "cancel", "-c", name, user.script(ENDLESS)) as client:
        expect_line(client, "begun\n")
        client.send_signal(signal.SIGINT)
        code, _, errors = wait_for_exit(client)
    assert code not in {0, 255}, errors
    run = last_run(user)
    assert run["state"] == "cancelled"
    assert read_tree(outputs_of(user, run["id"])) == {"partial": b"partial"}


@pytest.mark.parametrize("moment", ["project:", "upload:", "gpu:", "container"])
def test_ctrl_c_during_the_start_leaves_a_job_that_can_be_cancelled(lab: Lab, moment: str) -> None:
    user = lab.user()

    def jobs() -> list[str]:
        return lab.engine.containers(name="gpuinfra-20")

    with start_program(user, "submit", "-c", REMOTEDOCKER, user.script(ENDLESS)) as client:
        assert client.stderr is not None
        if moment == "container":
            wait_for(lambda: jobs() != [], "a container")
        else:
            while not client.stderr.readline().startswith(moment):
                assert client.poll() is None
        client.send_signal(signal.SIGINT)
        code, _, errors = wait_for_exit(client)
    assert code == 130, errors
    run = last_run(user)
    # It was cancelled, or started and detached: every job is known.
    if run["state"] == "running":
        assert user.does("cancel", "last", "--grace", "1s")["run"]["state"] == "cancelled"
    assert last_run(user)["state"] == "cancelled"
    assert jobs() == []


def test_ctrl_c_on_a_terminal_asks_what_to_do(lab: Lab) -> None:
    user = lab.user()
    script = user.script(f"{GATES}\nprint('begun')\ngate('more')\nprint('more to see')\ngate('never')\n")
    with open_terminal(user, "submit", "-c", REMOTEDOCKER, script) as terminal:
        terminal.wait_for_text(b"begun")
        terminal.type_keys(b"\x03")
        terminal.wait_for_text(b"[d/c/g]")
        terminal.type_keys(b"g\r")
        (shared_folder(user, REMOTEDOCKER) / "more").touch()
        terminal.wait_for_text(b"more to see")
        terminal.seen = b""
        terminal.type_keys(b"\x03")
        terminal.wait_for_text(b"[d/c/g]")
        terminal.type_keys(b"c\r")
        assert terminal.wait_for_exit() not in {0, 255}
    assert last_run(user)["state"] == "cancelled"


@pytest.mark.parametrize("answer", [b"d\r", b"\x03", b"\x04"])
def test_unanswered_question_leaves_the_job_running(lab: Lab, answer: bytes) -> None:
    user = lab.user()
    with open_terminal(user, "submit", "-c", LOCAL, user.script(ENDLESS)) as terminal:
        terminal.wait_for_text(b"begun")
        terminal.type_keys(b"\x03")
        terminal.wait_for_text(b"[d]: ")
        terminal.type_until(answer, b"gpuinfra logs")
        assert terminal.wait_for_exit() == 130
    assert last_run(user)["state"] == "running"
    user.does("cancel", "last", "--grace", "1s")
