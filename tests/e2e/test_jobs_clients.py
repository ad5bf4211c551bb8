"""Clients of jobs that are killed, interrupted, detached and return. The job runs on independently."""

import json
import signal

import pytest

from tests.e2e import jobs
from tests.lab import LOCAL, REMOTE, REMOTEDOCKER, TARGETS, Lab
from tests.variants import variant, variants

PATIENT = f"""{jobs.GATES}
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


@pytest.mark.parametrize("name", variants(*TARGETS, first=2))
def test_job_outlives_a_killed_client_and_can_be_followed_again(lab: Lab, name: str) -> None:
    user = lab.user()
    gate = f"killed-{name}"
    with jobs.start_program(user, "submit", "-c", name, user.script(PATIENT), gate) as client:
        jobs.expect_line(client, "first line\n")
        jobs.kill_program(client)
    found = jobs.last_run(user)
    assert (found["state"], found["exitCode"]) == ("running", None)
    # Two at once: one follows the job, and the other follows the first one's log.
    with (
        jobs.start_program(user, "logs", "last", "-f") as one,
        jobs.start_program(user, "logs", found["id"], "-f") as other,
    ):
        jobs.expect_line(one, "first line\n")
        (jobs.shared_folder(user, name) / gate).touch()
        for follower, rest in ((one, PRINTED.partition("\n")[2]), (other, PRINTED)):
            code, out, errors = jobs.wait_for_exit(follower)
            assert (code, out) == (3, rest), errors
            assert "careful\n" in errors
    after = jobs.last_run(user)
    assert (after["id"], after["state"], after["exitCode"]) == (found["id"], "failed", 3)
    assert after["outputs"]["complete"]
    assert jobs.read_tree(jobs.outputs_of(user, found["id"])) == WRITTEN


def test_detached_job_can_be_fetched_or_cancelled(lab: Lab) -> None:
    user = lab.user()
    run = jobs.submit_job(user, "-c", REMOTEDOCKER, "--detach", user.script(PATIENT), "detached")
    assert run["state"] == "running"
    (jobs.shared_folder(user, REMOTEDOCKER) / "detached").touch()
    code, out, errors = jobs.run_for_bytes(user, "logs", run["id"], "-f")
    assert (code, out.decode()) == (3, PRINTED), errors
    for name in (REMOTEDOCKER, LOCAL):
        run = jobs.submit_job(user, "-c", name, "-d", user.script(jobs.ENDLESS))
        jobs.wait_for(lambda: "partial" in user("outputs", "last", "--list").stdout, "its outputs")
        cancelled = user.does("cancel", "last", "--grace", "1s")["run"]
        assert (cancelled["id"], cancelled["state"]) == (run["id"], "cancelled")
        assert cancelled["outputs"]["complete"]
        assert jobs.read_tree(jobs.outputs_of(user, run["id"])) == {"partial": b"partial"}
        assert jobs.run_for_bytes(user, "logs", "last")[1] == b"begun\n"
    jobs.wait_for(lambda: lab.engine.containers() == [], "no container")  # nothing waits for its removal


WRITING = """
log = open("outputs/log.csv", "w", buffering=1)
open("outputs/checkpoint", "w").write("step 1")
print("1,0.5", file=log)
print("begun", flush=True)
while True:
    time.sleep(0.05)
    print("2,0.25", file=log)
"""


def test_outputs_of_a_followed_job_are_fetched_while_it_writes_them(lab: Lab) -> None:
    user = lab.user()
    script = user.script(f"{jobs.GATES}{WRITING}")
    with jobs.start_program(user, "submit", "-c", REMOTEDOCKER, script) as client:
        jobs.expect_line(client, "begun\n")
        done = user("outputs", "last", "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert {each["name"] for each in found["files"]} == {"checkpoint", "log.csv"}, found
        assert "skipped" not in found
        assert user.does("cancel", "last", "--grace", "1s")["run"]["outputs"]["complete"]
        jobs.wait_for_exit(client)


@variant
def test_followed_job_can_be_cancelled_by_another_client(lab: Lab) -> None:
    user = lab.user()
    with jobs.start_program(user, "submit", "--json", "-c", REMOTEDOCKER, user.script(jobs.ENDLESS)) as client:
        jobs.wait_for(lambda: jobs.last_run(user).get("state") == "running", "a job that runs")
        assert user.does("cancel", "last", "--grace", "1s")["run"]["state"] == "cancelled"
        code, out, errors = jobs.wait_for_exit(client)
    assert code not in {0, 255}, errors
    assert jobs.run_in_output(out)["state"] == "cancelled"


def test_job_cancelled_before_it_started_never_starts(lab: Lab) -> None:
    user = lab.user()
    with jobs.start_program(user, "submit", "-c", REMOTEDOCKER, user.script(jobs.ENDLESS)) as client:
        assert client.stderr is not None
        assert client.stderr.readline().startswith("project:")
        client.send_signal(signal.SIGSTOP)
        with jobs.start_program(user, "cancel", "last") as cancelling:
            jobs.wait_for(lambda: jobs.last_run(user)["reason"] == "cancelled", "a recorded cancel")
            client.send_signal(signal.SIGCONT)
            code, out, errors = jobs.wait_for_exit(client)
            assert jobs.wait_for_exit(cancelling)[0] == 0
    assert (code, out) == (1, ""), errors
    assert jobs.last_run(user)["state"] == "cancelled"
    jobs.wait_for(lambda: lab.engine.containers(name="gpuinfra-20") == [], "no container")


@variant
@pytest.mark.parametrize("name", variants(REMOTEDOCKER, REMOTE))
def test_timeout_applies_without_a_connected_client(lab: Lab, name: str) -> None:
    user = lab.user()
    with jobs.start_program(user, "submit", "-c", name, "--timeout", "5s", user.script(jobs.ENDLESS)) as client:
        jobs.expect_line(client, "begun\n")
        jobs.kill_program(client)
    code, out, errors = jobs.run_for_bytes(user, "logs", "last", "-f")
    assert code not in {0, 255}, errors
    assert out == b"begun\n"
    run = jobs.show_run(user)
    assert run["state"] == "timed-out"
    assert jobs.read_tree(jobs.outputs_of(user, run["id"])) == {"partial": b"partial"}


@pytest.mark.parametrize("name", variants(REMOTEDOCKER, LOCAL))
def test_ctrl_c_without_a_terminal_detaches_or_cancels(lab: Lab, name: str) -> None:
    user = lab.user()
    with jobs.start_program(user, "submit", "-c", name, user.script(jobs.ENDLESS)) as client:
        jobs.expect_line(client, "begun\n")
        client.send_signal(signal.SIGINT)
        code, _, errors = jobs.wait_for_exit(client)
    assert code == 130, errors
    run = jobs.last_run(user)
    assert run["state"] == "running"
    assert f"gpuinfra logs {run['id']} -f" in errors
    assert user.does("cancel", run["id"], "--grace", "1s")["run"]["state"] == "cancelled"
    with jobs.start_program(
        user, "submit", "--on-interrupt", "cancel", "-c", name, user.script(jobs.ENDLESS)
    ) as client:
        jobs.expect_line(client, "begun\n")
        client.send_signal(signal.SIGINT)
        code, _, errors = jobs.wait_for_exit(client)
    assert code not in {0, 255}, errors
    run = jobs.last_run(user)
    assert run["state"] == "cancelled"
    assert jobs.read_tree(jobs.outputs_of(user, run["id"])) == {"partial": b"partial"}


@pytest.mark.parametrize("moment", variants("project:", "container", "upload:", "gpu:", first=2))
def test_ctrl_c_during_the_start_leaves_a_job_that_can_be_cancelled(lab: Lab, moment: str) -> None:
    user = lab.user()

    def containers() -> list[str]:
        return lab.engine.containers(name="gpuinfra-20")

    with jobs.start_program(user, "submit", "-c", REMOTEDOCKER, user.script(jobs.ENDLESS)) as client:
        assert client.stderr is not None
        if moment == "container":
            jobs.wait_for(lambda: containers() != [], "a container")
        else:
            while not client.stderr.readline().startswith(moment):
                assert client.poll() is None
        client.send_signal(signal.SIGINT)
        code, _, errors = jobs.wait_for_exit(client)
    assert code == 130, errors
    run = jobs.last_run(user)
    # It was cancelled, or started and detached: every job is known.
    if run["state"] == "running":
        assert user.does("cancel", "last", "--grace", "1s")["run"]["state"] == "cancelled"
    assert jobs.last_run(user)["state"] == "cancelled"
    assert containers() == []


def test_ctrl_c_on_a_terminal_asks_what_to_do(lab: Lab) -> None:
    user = lab.user()
    script = user.script(f"{jobs.GATES}\nprint('begun')\ngate('more')\nprint('more to see')\ngate('never')\n")
    with jobs.open_terminal(user, "submit", "-c", REMOTEDOCKER, script) as terminal:
        terminal.wait_for_text(b"begun")
        terminal.type_keys(b"\x03")
        terminal.wait_for_text(b"[d/c/g]")
        terminal.type_keys(b"g\r")
        (jobs.shared_folder(user, REMOTEDOCKER) / "more").touch()
        terminal.wait_for_text(b"more to see")
        terminal.seen = b""
        terminal.type_keys(b"\x03")
        terminal.wait_for_text(b"[d/c/g]")
        terminal.type_keys(b"c\r")
        assert terminal.wait_for_exit() not in {0, 255}
    assert jobs.last_run(user)["state"] == "cancelled"


@pytest.mark.parametrize("answer", variants(b"\x03", b"d\r", b"\x04"))
def test_unanswered_question_leaves_the_job_running(lab: Lab, answer: bytes) -> None:
    user = lab.user()
    with jobs.open_terminal(user, "submit", "-c", LOCAL, user.script(jobs.ENDLESS)) as terminal:
        terminal.wait_for_text(b"begun")
        terminal.type_keys(b"\x03")
        terminal.wait_for_text(b"[d]: ")
        terminal.type_until(answer, b"gpuinfra logs")
        assert terminal.wait_for_exit() == 130
    assert jobs.last_run(user)["state"] == "running"
    user.does("cancel", "last", "--grace", "1s")
