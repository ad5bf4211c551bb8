"""Times and costs of a machine that another clone's `reap`, or someone in the portal, has switched on."""

from pathlib import Path

import pytest

from tests.e2e.azure import Azure, advance, change_power
from tests.e2e.repository import commit_all, git
from tests.e2e.user import User, run_reap
from tests.variants import variants

HOURS = {"timezone": "UTC", "on": "daily 08:00-18:00"}
PRICE = 0.631


@pytest.fixture
def restarted(request: pytest.FixtureRequest, user: User, azure: Azure, tmp_path: Path) -> User:
    """A user whose machine was on for an hour, and was started by CI in another clone when its hours began.

    Only in some tests, the user's workspace knows of its first end.
    """
    user.spec(lifecycle={"lease": "1h", "idle": "20h", "hours": HOURS})
    commit_all(user, "hours")
    now = azure.control("GET", "clock")["now"]
    advance(azure, 86_400 - now % 86_400 + 5 * 3600)
    user.up()
    advance(azure, 3600)
    if getattr(request, "param", True):
        user.down("my-dsvm")
    else:
        change_power(azure, "deallocate")
    advance(azure, 4 * 3600)
    clone = tmp_path / "clone"
    git(user, "clone", "-q", str(user.workspace), str(clone))
    ci = User(azure, tmp_path / "ci", clone, key=False)
    azure.fault("no-boot", count=0)
    assert len(run_reap(ci, "--specs", ".", "--start")["started"]) == 1
    return user


@pytest.mark.parametrize("restarted", variants(False, True), indirect=True, ids=["end not recorded", "end recorded"])
def test_status_counts_from_the_start_by_another_client(restarted: User, azure: Azure) -> None:
    advance(azure, 1800)
    (shown,) = restarted.does("status")["machines"]
    assert shown["costUsd"] == pytest.approx(PRICE / 2, abs=0.01)


@pytest.mark.parametrize("starter", variants("reap in another clone", "someone in the portal"))
def test_receipt_of_a_machine_that_others_started_and_stopped(restarted: User, azure: Azure, starter: str) -> None:
    if starter == "someone in the portal":
        change_power(azure, "deallocate")
        advance(azure, 600)
        change_power(azure, "start")
    advance(azure, 1800)
    change_power(azure, "deallocate")
    advance(azure, 1800)
    receipt = restarted.down("my-dsvm")
    assert receipt["costUsd"] == pytest.approx(PRICE / 2, abs=0.01)
    assert receipt["billedSeconds"] == pytest.approx(1800, abs=60)
    again = restarted.down("my-dsvm")
    assert (again["cause"], again["costUsd"]) == ("it was off already", None)
