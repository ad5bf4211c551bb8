"""Leases on the embedded Azure with a set clock: renewed for a working job and for a detached one."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.e2e.azure import Azure
from tests.e2e.impatient import start_impatient
from tests.e2e.jobs import expect_line, wait_for
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
    """Return the time left of the lease, by the tag and by Azure's clock."""
    until = datetime.fromisoformat(azure.machine()["tags"]["gpuinfra:lease-until"])
    return until - datetime.fromtimestamp(azure.control("GET", "clock")["now"], UTC)


def test_lease_is_renewed_while_a_job_works(user: User, azure: Azure) -> None:
    project(user, idle="5h")  # longer than the clock is advanced: the agent must not act before the job
    user.up()
    assert left(azure) < LEASE + timedelta(minutes=1)
    # Before the client logs in: its token is as old as its own clock says.
    azure.control("POST", "clock", {"advance": 70 * 60})
    with start_impatient(user, "submit", "-c", "my_dsvm", "talks.py") as client:
        expect_line(client, "at work\n")
        wait_for(lambda: left(azure) > LEASE - timedelta(minutes=5), "a lease that was renewed")
        # Azure's schedule has moved along, or it would end the machine at the end of the old lease.
        azure.control("POST", "clock", {"advance": 55 * 60})
        assert azure.machine()["powerState"] == "PowerState/running"
    user.does("cancel", "last", "--grace", "0s")


def test_detached_job_gets_its_full_timeout(user: User, azure: Azure) -> None:
    user.up()
    done = user("submit", "-c", "my_dsvm", "--detach", "--timeout", "5h", "waits.py")
    assert done.returncode == 0, done.stderr
    assert timedelta(hours=5, minutes=9) < left(azure) < timedelta(hours=5, minutes=12)
    user.does("cancel", "last", "--grace", "0s")
