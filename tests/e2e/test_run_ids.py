"""A run's id that is a path: it leads to no file outside of the folder of runs."""

import json
import sqlite3

import pytest

from gpuinfra.store import FILE
from tests.e2e.user import User
from tests.variants import variants

SECRET = "correct horse battery staple"
COMMANDS = [("logs",), ("outputs",), ("cancel",), ("runs", "show")]


@pytest.fixture
def owner(user: User) -> User:
    """A user with one run, and with files of a run outside of the folder of runs."""
    (user.workspace / "train.py").write_text("print('ran')\n")
    assert user("submit", "-c", "local", "train.py").stdout == "ran\n"
    for folder in (user.workspace / "mine", user.workspace / ".gpuinfra"):
        (folder / "outputs").mkdir(parents=True)
        (folder / "outputs" / "secret.txt").write_text(SECRET)
        (folder / "log").write_text(f"{SECRET}\n")
    return user


@pytest.mark.parametrize("run_id", variants("../../mine", "..", "../mine", "/"))
def test_path_on_the_command_line_is_not_a_run(owner: User, run_id: str) -> None:
    for words in COMMANDS:
        problem = owner.fails(*words, run_id, code="no-such-run", exit_code=2)
        assert SECRET not in json.dumps(problem)


@pytest.mark.parametrize("run_id", variants("../../mine", ".."))
def test_path_in_a_record_is_refused(owner: User, run_id: str) -> None:
    with sqlite3.connect(owner.workspace / ".gpuinfra" / FILE) as database:
        ((text,),) = database.execute("SELECT run FROM runs")
        database.execute("UPDATE runs SET id = ?, run = ?", (run_id, json.dumps({**json.loads(text), "id": run_id})))
    for words in COMMANDS:
        done = owner(*words, "last")
        assert done.returncode != 0, done.stdout
        assert "is not a run's id" in done.stderr
        assert SECRET not in done.stdout + done.stderr
