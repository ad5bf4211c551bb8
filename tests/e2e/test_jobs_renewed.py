"""Leases on the embedded Azure, whose clock is set: renewed for a job that works, and for one that was left."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.e2e.azure import Azure
from tests.e2e.impatient import impatient
from tests.e2e.jobs import reads, soon
from tests.e2e.run_help import project
from tests.e2e.user import User

LEASE = timedelta(hours=2)
TALKS = """
import time
while True:
    print("at work", flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def user(user: User) -> User:
    project(user)
    (user.workspace / "talks.py").write_text(TALKS)
    return user


def left(azure: Azure) -> timedelta:
    """Of the lease, by the tag and by Azure's clock."""
    until = datetime.fromisoformat(azure.machine()["tags"]["gpuinfra:lease-until"])
    return until - datetime.fromtimestamp(azure.control("GET", "clock")["now"], UTC)


def test_a_job_that_works_keeps_its_lease_ahead_of_it(user: User, azure: Azure) -> None:
    user.up()
    assert left(azure) < LEASE + timedelta(minutes=1)
    # Before the client logs in: its token is as old as its own clock says.
    azure.control("POST", "clock", {"advance": 70 * 60})
    with impatient(user, "submit", "-c", "my_dsvm", "talks.py") as client:
        reads(client, "at work\n")
        soon(lambda: left(azure) > LEASE - timedelta(minutes=5), "a lease that was renewed")
        # Azure's own schedule has moved along: else it would end the machine at the end of the old lease.
        azure.control("POST", "clock", {"advance": 55 * 60})
        assert azure.machine()["powerState"] == "PowerState/running"
    user.does("cancel", "last", "--grace", "0s")


def test_a_job_that_was_left_has_the_time_that_it_was_given(user: User, azure: Azure) -> None:
    user.up()
    done = user("submit", "-c", "my_dsvm", "--detach", "--timeout", "5h", "waits.py")
    assert done.returncode == 0, done.stderr
    assert timedelta(hours=5, minutes=9) < left(azure) < timedelta(hours=5, minutes=12)
    user.does("cancel", "last", "--grace", "0s")
