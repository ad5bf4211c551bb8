"""`keepOnFailure`: after a failed job, the machine stays on for a look, and then goes off without the client."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.e2e.azure import Azure, advance
from tests.e2e.run_help import SPEC, agent_state, guest_home, is_off, project, run_job, runs_of, wait_until
from tests.e2e.user import User
from tests.variants import variant

MINUTE = 60
LOOK, BACKSTOP = 30 * MINUTE, 35 * MINUTE
FAILS = ("gpu.yaml", "quick.py", "3")


@pytest.fixture
def user(user: User) -> User:
    project(user, idle="5m")
    return user


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def now(azure: Azure) -> float:
    return float(azure.control("GET", "clock")["now"])


def fail(user: User) -> dict[str, Any]:
    """Run a job that fails, and return the object that `run` prints."""
    return run_job(user, "--keep-on-failure", "30m", *FAILS, exit_code=3)


def test_agent_ends_the_look_at_a_failed_job(user: User, azure: Azure) -> None:
    ended = now(azure)
    document = fail(user)
    run, stay = document["run"]["id"], document["receipt"]["staysOn"]
    assert (stay["reason"], stay["run"], stay["endedBy"]) == ("failed-job", run, ["agent", "schedule"])
    assert (document["receipt"]["off"], document["run"]["outputs"]["complete"]) == (False, True)
    assert 0 <= moment(stay["until"]) - ended - LOOK <= 3 * MINUTE
    assert moment(stay["latest"]) == moment(stay["until"]) + BACKSTOP
    price = document["receipt"]["pricePerHourUsd"]
    assert stay["mostUsd"] == pytest.approx(price * (moment(stay["latest"]) - now(azure)) / 3600, abs=0.01)
    (folder,) = (each.removeprefix("folder ") for each in stay["places"])
    assert "quick.py" in user("ssh", "my-dsvm", "--", "ls", folder).stdout
    assert f"on for a look at failed run {run}" in user("status").stdout
    assert user.does("lease", "my-dsvm")["onFor"] == {"reason": "failed-job", "run": run}

    # Much later than the idle time, and shortly before the end. The clock almost stands still meanwhile.
    azure.control("POST", "clock", {"speed": 0.01})
    wait_until(lambda: agent_state(azure).get("heldFor") == run, "an agent that knows of the look")
    advance(azure, moment(stay["until"]) - 2 * MINUTE - now(azure))
    before = now(azure)
    wait_until(lambda: moment(agent_state(azure)["at"]) >= int(before), "an agent that looked again")
    assert (agent_state(azure)["action"], azure.is_billed()) == ("warning", True)
    advance(azure, 2 * MINUTE)
    azure.control("POST", "clock", {"speed": 1})
    wait_until(lambda: is_off(azure), "off")


def test_schedule_ends_the_look_if_the_agent_cannot(user: User, azure: Azure) -> None:
    azure.fault("AuthorizationFailed", method="PUT", type="roleAssignments", count=0)
    document = fail(user)
    stay = document["receipt"]["staysOn"]
    assert stay["endedBy"] == ["schedule"]
    advance(azure, moment(stay["latest"]) + MINUTE - now(azure))
    assert is_off(azure)


@variant
def test_next_run_during_the_look_works_as_with_a_machine_that_is_on(user: User, azure: Azure) -> None:
    first = fail(user)["run"]["id"]
    again = run_job(user, "gpu.yaml", "quick.py")
    assert again["receipt"]["staysOn"] is None
    assert again["receipt"]["off"]
    assert is_off(azure)
    user.up()
    kept = guest_home(azure) / ".gpuinfra" / "runs" / first
    assert not kept.exists(), "the second run had its copy of the project"
    until = datetime.fromisoformat(azure.machine()["tags"]["gpuinfra:lease-until"])
    assert (until - datetime.fromtimestamp(now(azure), UTC)).total_seconds() > 3600


def test_only_a_job_that_fails_by_itself_keeps_the_machine_on(user: User, azure: Azure) -> None:
    user.spec(**SPEC, job={"keepOnFailure": "30m"})
    document = run_job(user, "gpu.yaml", "quick.py")
    assert (document["receipt"]["off"], is_off(azure)) == (True, True)
    document = run_job(user, "--timeout", "1s", "gpu.yaml", "waits.py", exit_code=143)
    assert (document["run"]["state"], document["receipt"]["off"]) == ("timed-out", True)
    assert [run["outputs"]["complete"] for run in runs_of(user)] == [True, True]


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (("--keep-on-failure", "30m", "--after-run", "keep"), "`--keep-on-failure` changes nothing"),
        (("--keep-on-failure", "24h"), "expected `1m` to `23h`"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_billed(
    user: User, azure: Azure, words: tuple[str, ...], note: str
) -> None:
    done = user("run", *words, *FAILS)
    assert (done.returncode, note in done.stderr) == (2, True), done.stderr
    assert not azure.everything()
