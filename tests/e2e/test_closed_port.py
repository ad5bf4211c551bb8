"""`submit` to a machine whose SSH port is closed: it fails in seconds, and the cause is named once."""

import socket
from collections.abc import Iterator

import pytest

from gpuinfra.models.target import Target
from gpuinfra.provision.login import new_host_key
from gpuinfra.workbench.targets import write_target
from tests.e2e.azure import Azure
from tests.e2e.run_help import Start
from tests.e2e.user import User

# Far longer than a refused connection takes, and shorter than the wait for a booting machine.
SECONDS = 90


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A reserved port without a listener."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])


def test_submit_to_a_closed_port_fails_in_seconds(user: User, closed_port: int) -> None:
    key = new_host_key().public
    write_target(user.workspace, Target("lab", "lab", "remote", "127.0.0.1", closed_port, "me", key))
    (user.workspace / "train.py").write_text("print('done')")
    done = user("submit", "-c", "lab", "train.py", sandbox=False, seconds=SECONDS)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no answer" in done.stderr
    assert f"cannot connect to 127.0.0.1:{closed_port}: Connection refused" in done.stderr
    assert "gpu: checking it" not in done.stderr


def order(azure: Azure, action: str) -> None:
    machine = azure.id("Microsoft.Compute/virtualMachines", "my-dsvm")
    status, answer = azure.send("POST", f"{machine}/{action}")
    assert status == 202, answer


def test_submit_waits_for_a_machine_that_boots(user: User, start: Start) -> None:
    user.spec(target={"type": "remote"})
    user.up()
    (user.workspace / "train.py").write_text("print('done')")
    azure = user.azure
    azure.fault("no-boot", resource="my-dsvm", count=0)
    order(azure, "deallocate")
    order(azure, "start")
    submit = start("submit", "-c", "my_dsvm", "train.py")
    submit.until_says("trying again")
    azure.clear_faults()
    order(azure, "restart")
    assert submit.end() == 0, submit.said
