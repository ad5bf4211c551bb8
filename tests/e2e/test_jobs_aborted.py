"""Aborted starts of jobs, and what they leave on the target."""

import os
import signal

import pytest

from tests.e2e import jobs
from tests.lab import REMOTE, REMOTEDOCKER, Lab
from tests.proxy import holding
from tests.variants import variant, variants

GREETING = "print('hello')\n"
SIZE = 4 << 20


def copies(lab: Lab) -> list[str]:
    """Return the copies of projects on the target."""
    return sorted(str(slot.name) for slot in lab.home.glob(".gpuinfra/projects/*/slot-*"))


def runs_there(lab: Lab) -> list[str]:
    """Return the ids of runs that have a folder on the target."""
    return sorted(each.name for each in lab.home.glob(".gpuinfra/runs/*"))


def test_failed_starts_share_one_copy_of_the_project(lab: Lab) -> None:
    user = lab.user()
    script = user.script(GREETING)
    user.compute(REMOTEDOCKER, baseDockerImage="nowhere.invalid/no/such:image")
    for _ in range(3):
        jobs.submit_refused(user, "-c", REMOTEDOCKER, script, code="no-image")
    assert copies(lab) == ["slot-1"]
    assert runs_there(lab) == []


def test_interrupt_while_connecting_suggests_no_run_that_does_not_exist(lab: Lab) -> None:
    user = lab.user()
    with holding(lab.server.port, 0) as proxy:
        user.compute(REMOTE, address=f"127.0.0.1:{proxy.port}")
        with jobs.start_program(user, "submit", "-c", REMOTE, user.script(GREETING)) as client:
            jobs.wait_for(lambda: proxy.is_holding.is_set() or client.poll() is not None, "a connection")
            client.send_signal(signal.SIGINT)
            code, _, errors = jobs.wait_for_exit(client)
    assert code == 130, errors
    assert "cancelled" in errors
    assert "follow" not in errors
    assert all(run["state"] == "cancelled" for run in user.does("runs")["runs"])


@variant
def test_interrupted_starts_share_one_copy_of_the_project(lab: Lab) -> None:
    user = lab.user()
    assert lab.engine.pid is not None
    for _ in range(2):
        (user.workspace / "large").write_bytes(os.urandom(SIZE))
        with holding(lab.server.port, SIZE // 2) as proxy:
            user.compute(REMOTEDOCKER, address=f"127.0.0.1:{proxy.port}")
            try:
                with jobs.start_program(user, "submit", "-c", REMOTEDOCKER, user.script(jobs.ENDLESS)) as client:
                    jobs.wait_for(
                        lambda: proxy.is_holding.is_set() or client.poll() is not None, "an upload that is held back"
                    )
                    os.kill(lab.engine.pid, signal.SIGSTOP)  # the upload succeeds, and the job cannot start
                    proxy.open()
                    jobs.wait_for(lambda: runs_there(lab) != [], "a run")
                    client.send_signal(signal.SIGINT)
                    code, _, errors = jobs.wait_for_exit(client)
            finally:
                os.kill(lab.engine.pid, signal.SIGCONT)
        assert code == 130, errors
        assert jobs.last_run(user)["state"] == "cancelled"
        assert runs_there(lab) == []
    assert copies(lab) == ["slot-1"]


@pytest.mark.parametrize("name", variants(REMOTEDOCKER, REMOTE))
def test_next_start_uses_the_copy_of_a_killed_one(lab: Lab, name: str) -> None:
    user = lab.user()
    script = user.script(GREETING)
    (user.workspace / "large").write_bytes(os.urandom(SIZE))
    for _ in range(2):
        with holding(lab.server.port, SIZE // 2) as proxy:
            user.compute(name, address=f"127.0.0.1:{proxy.port}")
            with jobs.start_program(user, "submit", "-c", name, script) as client:
                jobs.wait_for(
                    lambda: proxy.is_holding.is_set() or client.poll() is not None, "an upload that is held back"
                )
                jobs.kill_program(client)
            assert jobs.last_run(user)["state"] == "lost"
            (user.workspace / "large").write_bytes(os.urandom(SIZE))
    user.compute(name, address=f"127.0.0.1:{lab.server.port}")
    jobs.submit_job(user, "-c", name, script)
    assert copies(lab) == ["slot-1"]
    assert runs_there(lab) == []
    assert [run["state"] for run in user.does("runs")["runs"]] == ["completed", "lost", "lost"]


@variant
def test_aborted_start_does_not_touch_a_running_job(lab: Lab) -> None:
    user = lab.user()
    with jobs.start_program(user, "submit", "-c", REMOTEDOCKER, user.script(jobs.ENDLESS)) as client:
        jobs.expect_line(client, "begun\n")
        run = jobs.last_run(user)["id"]
        user.compute(REMOTEDOCKER, baseDockerImage="nowhere.invalid/no/such:image")
        for _ in range(2):
            jobs.submit_refused(user, "-c", REMOTEDOCKER, user.script(jobs.ENDLESS), code="no-image")
        assert copies(lab) == ["slot-1", "slot-2"]
        assert runs_there(lab) == [run]
        assert user.does("cancel", run, "--grace", "0s")["run"]["state"] == "cancelled"
