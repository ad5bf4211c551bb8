"""`up` asks before a changed lease or cost cap ends a machine sooner while jobs run on it."""

from datetime import datetime
from typing import Any

import pytest

from tests.e2e.azure import Azure, advance
from tests.e2e.run_help import project, runs_of, state_of_job
from tests.e2e.user import User
from tests.variants import variant, variants

# At $0.631 an hour, an hour costs more than the cap.
EARLIER: dict[str, dict[str, Any]] = {"cap": {"maxCost": "0.10 USD"}, "lease": {"lease": "20m"}}


@pytest.mark.parametrize("change", variants(*EARLIER))
def test_up_asks_before_it_ends_a_machine_sooner_while_a_job_runs(user: User, azure: Azure, change: str) -> None:
    project(user, idle="5h", lease="4h")
    user.up()
    done = user("submit", "-c", "my_dsvm", "--detach", "waits.py")
    assert done.returncode == 0, done.stderr
    (run,) = runs_of(user)
    advance(azure, 3600)
    before = azure.machine()["tags"]
    project(user, **{"idle": "5h", "lease": "4h", **EARLIER[change]})
    problem = user.fails("up", "gpu.yaml", code="needs-consent", exit_code=2)
    assert run["id"] in problem["note"]
    assert azure.machine()["tags"] == before
    assert "ended" not in (state_of_job(azure, run["id"]) or {})


@variant
def test_up_ends_a_machine_sooner_without_a_question_if_no_job_runs(user: User, azure: Azure) -> None:
    project(user, idle="5h", lease="4h")
    user.up()
    before = azure.machine()["tags"]["gpuinfra:lease-until"]
    project(user, idle="5h", lease="1h")
    user.up()
    after = azure.machine()["tags"]["gpuinfra:lease-until"]
    assert datetime.fromisoformat(after) < datetime.fromisoformat(before)
