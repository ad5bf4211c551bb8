"""The question after Ctrl-C on a terminal ends with the job, or after two minutes."""

import pytest

from tests.e2e.azure import Azure
from tests.e2e.jobs import open_terminal
from tests.e2e.run_help import guest_home, is_off, project, runs_of
from tests.e2e.user import User

QUICK_HEARTBEAT = {"gpuinfra.runner.jobs.heartbeat.PERIOD_SECONDS": 0.2}


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


def test_unanswered_question_detaches(user: User, azure: Azure) -> None:
    with open_terminal(
        user, "run", "gpu.yaml", "waits.py", patch={"gpuinfra.views.frontend.ANSWER_SECONDS": 0.5}
    ) as terminal:
        terminal.wait_for_text(b"begun")
        terminal.type_keys(b"\x03")
        assert terminal.wait_for_exit() == 130
    assert b"no answer within" in terminal.seen
    assert b"deallocates it when the job has finished" in terminal.seen
    assert runs_of(user)[0]["state"] == "running"
