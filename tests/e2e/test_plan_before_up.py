"""`up` and `run` show the plan and its price before they change anything."""

import pytest

from tests.e2e.azure import Azure
from tests.e2e.run_help import Start, project
from tests.e2e.user import LARGER_SIZE, SIZE, User

PRICE = "Price (simulated): $0.631 an hour while on"


@pytest.mark.parametrize("words", [["up", "gpu.yaml"], ["run", "gpu.yaml", "quick.py"]], ids=["up", "run"])
def test_plan_and_price_are_printed_before_the_first_write(
    user: User, azure: Azure, start: Start, words: list[str]
) -> None:
    project(user)
    azure.fault("hold-before", method="PUT")
    client = start(*words)
    client.until_held()
    assert azure.writes() == []
    assert f"{SIZE}, southcentralus, $0.631/h" in client.err
    assert "Plan: 7 to add" in client.err
    assert PRICE in client.err


def test_up_without_a_terminal_creates_without_a_question(user: User, azure: Azure) -> None:
    done = user("up", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert "Continue?" not in done.stderr
    assert done.stdout.count("+ machine") == 0, "the plan is shown once"
    assert done.stdout.startswith("Done: 7 added")


def test_up_prints_the_price_of_the_next_candidate_before_it_tries_it(user: User, azure: Azure) -> None:
    user.spec("size", sizes=[SIZE, LARGER_SIZE])
    azure.fault("SkuNotAvailable", method="PUT", type="virtualMachines")
    done = user("up", "gpu.yaml")
    assert done.returncode == 0, done.stderr
    assert f"next: {LARGER_SIZE}" in done.stderr.replace("southcentralus ", "")
    assert "$0.902 an hour" in done.stderr
