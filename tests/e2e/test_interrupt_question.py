"""The question after Ctrl-C on a terminal ends with the job, or after two minutes."""

import re

import pytest

from tests.e2e.azure import Azure
from tests.e2e.jobs import open_terminal
from tests.e2e.run_help import guest_home, is_off, project, runs_of
from tests.e2e.user import User
from tests.variants import variant

QUICK_HEARTBEAT = {"gpuinfra.runner.heartbeat.PERIOD_SECONDS": 0.2}


@pytest.fixture
def user(user: User) -> User:
    project(user)
    return user


def test_question_closes_when_the_job_ends_and_the_machine_goes_off(user: User, azure: Azure) -> None:
    with open_terminal(user, "run", "gpu.yaml", "waits.py", patch=QUICK_HEARTBEAT) as terminal:
        terminal.wait_for_text(b"begun")
        terminal.type_keys(b"\x03")
        terminal.wait_for_text(b"[d]: ")
        (guest_home(azure) / "go").touch()
        assert terminal.wait_for_exit() == 0
    assert b"the job has ended" in terminal.seen
    (run,) = runs_of(user)
    assert (run["state"], run["outputs"]["complete"]) == ("completed", True)
    assert is_off(azure)


def test_question_says_what_a_detach_leads_to_and_a_second_ctrl_c_detaches(user: User, azure: Azure) -> None:
    with open_terminal(user, "run", "--timeout", "5h", "gpu.yaml", "waits.py") as terminal:
        terminal.wait_for_text(b"begun")
        terminal.type_keys(b"\x03")
        terminal.wait_for_text(b"[d]: ")
        shown = " ".join(terminal.seen.decode().split())
        assert "detach: the job finishes, then the agent of my-dsvm switches the machine off, within 5h10m" in shown
        assert re.search(r"Azure's schedule does within 5h45m, for at most \$[0-9]+\.[0-9]{2} more", shown)
        assert "its outputs are fetched; my-dsvm is switched off" in shown
        terminal.type_until(b"\x03", b"detaching: the job keeps running")
        assert terminal.wait_for_exit() == 130
    (run,) = runs_of(user)
    assert (run["state"], run["reason"]) == ("running", "")
    assert not is_off(azure)


@variant
def test_unanswered_question_detaches(user: User, azure: Azure) -> None:
    with open_terminal(
        user, "run", "gpu.yaml", "waits.py", patch={"gpuinfra.views.frontend.ANSWER_SECONDS": 0.5}
    ) as terminal:
        terminal.wait_for_text(b"begun")
        terminal.type_keys(b"\x03")
        assert terminal.wait_for_exit() == 130
    assert b"no answer within" in terminal.seen
    assert b"when the job has finished, by its guest agent" in terminal.seen
    assert runs_of(user)[0]["state"] == "running"
