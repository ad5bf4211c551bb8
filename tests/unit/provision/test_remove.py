"""Deletion in the right order, with verification."""

import threading
from collections.abc import Iterable

import pytest

from gpuinfra.models.resource import Kind, Ref
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.remove import remove
from tests.unit.provision_help import BUSY, DENIED, UNREACHABLE, FakeCloud, lines_of, made, ref, task

ALL = [ref(kind) for kind in Kind]


def remove_all(cloud: FakeCloud, refs: Iterable[Ref] = ALL, seconds: float = 3600) -> list[str]:
    work = task(cloud, seconds)
    remove(work, refs)
    return lines_of(work)


def order(cloud: FakeCloud) -> dict[str, int]:
    return {call.split()[1]: number for number, call in enumerate(cloud.calls) if call.startswith("delete ")}


def test_machine_is_deleted_first_and_the_group_last() -> None:
    cloud = made()
    lines = remove_all(cloud)
    assert cloud.parts == {}
    when = order(cloud)
    assert min(when, key=lambda kind: when[kind]) == "vm"
    assert max(when, key=lambda kind: when[kind]) == "resource-group"
    for kind in ("public-ip", "nsg", "vnet"):
        assert when["nic"] < when[kind]
    assert lines[:2] == ["vm my-dsvm: deleting", "vm my-dsvm: deleted"]


def test_schedule_is_deleted_only_after_the_machine_is_gone() -> None:
    cloud = made()
    remove_all(cloud)
    seen = max(number for number, call in enumerate(cloud.calls) if call == "look vm my-dsvm")
    assert seen < order(cloud)["shutdown-schedule"]


def test_machine_that_cannot_be_deleted_keeps_its_schedule() -> None:
    cloud = made()
    cloud.fail("delete vm", DENIED)
    with pytest.raises(CloudError, match="AuthorizationFailed"):
        remove_all(cloud)
    assert order(cloud).keys() == {"vm"}
    assert Kind.SHUTDOWN_SCHEDULE in cloud.kinds


def test_independent_resources_are_deleted_in_parallel() -> None:
    cloud = made()
    together = threading.Barrier(2)

    def synchronise(call: str) -> None:
        if call in {"delete nsg my-dsvm-nsg", "delete vnet my-dsvm-vnet"}:
            together.wait(10)

    cloud.on_call = synchronise
    remove_all(cloud)
    assert cloud.parts == {}


def test_absent_resource_counts_as_deleted() -> None:
    cloud = FakeCloud()
    remove_all(cloud)
    assert len([call for call in cloud.calls if call.startswith("delete ")]) == len(Kind)


def test_each_resource_is_deleted_once() -> None:
    cloud = made()
    remove_all(cloud, [*ALL, *ALL])
    assert len([call for call in cloud.calls if call.startswith("delete ")]) == len(Kind)


def test_only_requested_resources_are_deleted() -> None:
    cloud = made()
    remove_all(cloud, [ref(Kind.SHUTDOWN_SCHEDULE)])
    assert cloud.kinds == [kind for kind in Kind if kind is not Kind.SHUTDOWN_SCHEDULE]


def test_resource_that_azure_still_shows_is_not_deleted() -> None:
    cloud = made()
    cloud.stays = {Kind.VM}
    with pytest.raises(CloudError) as caught:
        remove_all(cloud, [ref(Kind.VM)], seconds=60)
    assert (caught.value.fault, caught.value.code) == (Fault.TIMEOUT, "StillThere")
    assert caught.value.subject == "vm my-dsvm"
    assert 50 < cloud.time.seconds < 60


@pytest.mark.parametrize("error", [BUSY, UNREACHABLE])
@pytest.mark.parametrize("call", ["delete vm", "wait vm"])
def test_deletion_is_retried_for_long(call: str, error: CloudError) -> None:
    cloud = made()
    cloud.fail(call, error, times=20)
    remove_all(cloud, [ref(Kind.VM)])
    assert Kind.VM not in cloud.kinds


def test_failure_is_reported() -> None:
    cloud = made()
    cloud.fail("delete disk", DENIED)
    work = task(cloud)
    with pytest.raises(CloudError):
        remove(work, [ref(Kind.DISK)])
    assert lines_of(work) == ["disk my-dsvm-disk: deleting", "disk my-dsvm-disk: failed: AuthorizationFailed"]


def test_deletion_that_ends_in_404_succeeds() -> None:
    cloud = made()
    cloud.fail("wait vm", CloudError(Fault.ABSENT, "ResourceNotFound", "already deleted"))
    remove_all(cloud, [ref(Kind.VM)])


def test_lost_check_is_repeated() -> None:
    cloud = made()
    cloud.fail("look vm", UNREACHABLE)
    remove_all(cloud, [ref(Kind.VM)])


def test_missing_operation_does_not_prove_a_deletion() -> None:
    cloud = made()
    cloud.stays = {Kind.VM}
    cloud.fail("wait vm", CloudError(Fault.ABSENT, "NotFound", "no such operation"))
    with pytest.raises(CloudError):
        remove_all(cloud, [ref(Kind.VM)], seconds=60)
