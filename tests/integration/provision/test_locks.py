"""Management locks: a machine that cannot be switched off is reported, and none is created where that would happen."""

from collections.abc import Iterator

import pytest

from tests.integration.provision.harness import Harness, resources_of
from tests.variants import variants

NAME = "locked"
SPEC = f"{NAME}.yaml"
GROUP = f"gpuinfra-{NAME}"
READ_ONLY, CAN_NOT_DELETE = "ReadOnly", "CanNotDelete"
REMOVES = "az lock delete"


@pytest.fixture(autouse=True)
def write_spec(harness: Harness) -> Iterator[None]:
    harness.spec(NAME, lifecycle={"lease": "1h"})
    yield
    harness.unlock()


def test_read_only_lock_on_a_running_machine_is_reported_by_every_command(harness: Harness) -> None:
    """Azure's schedule and the guest agent cannot switch it off either, so no command may call it off or fine."""
    harness.succeed("up", SPEC)
    lock = harness.lock(READ_ONLY, f"/resourceGroups/{GROUP}")
    for words in (["plan", SPEC], ["up", SPEC]):
        result = harness.run(*words)
        assert result.code == 4, result.text
        assert "machine is on and cannot be switched off" in result.err
        assert lock in result.err
    for words in (["down", SPEC], ["down", "--delete", SPEC]):
        result = harness.run(*words)
        assert result.code == 4, result.text
        assert "NOT VERIFIED" in result.out
        assert f"vm {NAME} is on: ScopeLocked: a lock on resource group {GROUP}" in result.out
        assert REMOVES in result.out
    harness.advance(3 * 3600)  # the lease is over, and Azure's schedule has fired
    assert harness.billed() == [NAME]
    result = harness.run("reap")
    assert (result.code, REMOVES in result.out) == (4, True), result.text
    result = harness.run("doctor", NAME)
    assert "nothing can switch the machine off, and it is billed" in result.out
    assert (result.code, lock in result.out) == (1, True), result.text
    harness.unlock()
    harness.succeed("down", SPEC)
    assert harness.billed() == []


@pytest.mark.parametrize("scope", variants("", "/resourceGroups/shared"))
def test_nothing_is_created_under_a_read_only_lock(harness: Harness, scope: str) -> None:
    harness.group("shared")
    harness.spec(NAME, resourceGroup="shared")
    lock = harness.lock(READ_ONLY, scope)
    result = harness.run("up", SPEC)
    assert result.code == 1, result.text
    assert "machine could not be switched off" in result.err
    assert lock in result.err
    assert harness.resources() == {"group/shared"}


def test_down_delete_of_a_locked_machine_switches_it_off(harness: Harness) -> None:
    harness.succeed("up", SPEC)
    harness.lock(CAN_NOT_DELETE, f"/resourceGroups/{GROUP}")
    result = harness.run("down", "--delete", SPEC)
    assert result.code == 4, result.text
    assert "NOT ALL DELETED" in result.out
    assert f"vm {NAME}: ScopeLocked: a lock on resource group {GROUP} forbids it" in result.out
    assert f"still paid  disk {NAME}-disk, about $19.20 a month" in result.out
    assert harness.billed() == []
    assert harness.resources() == resources_of(NAME)


def test_down_delete_removes_what_is_not_locked(harness: Harness) -> None:
    harness.succeed("up", SPEC)
    disk = f"/resourceGroups/{GROUP}/providers/Microsoft.Compute/disks/{NAME}-disk"
    harness.lock(CAN_NOT_DELETE, disk)
    result = harness.run("down", "--delete", SPEC)
    assert result.code == 4, result.text
    assert f"a lock on disks/{NAME}-disk in resource group {GROUP}" in result.out
    assert harness.resources() == {f"group/{GROUP}", f"microsoft.compute/disks/{NAME}-disk"}
    harness.unlock()
    harness.succeed("down", "--delete", SPEC)
    assert harness.resources() == set()


def test_failed_up_switches_off_what_a_lock_keeps(harness: Harness) -> None:
    """Nothing would end this machine, so `up` rolls it back; the lock forbids that, but not switching it off."""
    harness.lock(CAN_NOT_DELETE)
    harness.arm("no-schedules")
    harness.arm("AuthorizationFailed", method="PUT", type="roleAssignments", count=0)
    result = harness.run("up", SPEC)
    assert result.code == 4, result.text
    assert f"vm {NAME} is off; what remains may be billed" in result.err
    assert harness.machines() == [(NAME, "southcentralus", "deallocated")]
    assert harness.billed() == []
