"""Deletion in the right order, with verification."""

import threading
from collections.abc import Iterable

import pytest

from gpuinfra.models.plan import Kind, Ref
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.remove import remove, remove_unused
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
    assert lines[:2] == ["vm my-dsvm: deleting", "vm my-dsvm: deleted"]


def test_nic_is_deleted_before_what_it_uses() -> None:
    cloud = made()
    cloud.remove(Kind.VM)
    remove_all(cloud)
    when = order(cloud)
    for kind in ("public-ip", "nsg", "vnet"):
        assert when["nic"] < when[kind]


def test_schedule_is_deleted_only_after_the_machine_is_gone() -> None:
    cloud = made()
    remove_all(cloud)
    assert cloud.calls.index("wait vm my-dsvm") < order(cloud)["shutdown-schedule"]


def test_schedule_of_a_machine_that_stays_is_kept() -> None:
    cloud = made()
    with pytest.raises(CloudError, match="its VM exists"):
        remove_all(cloud, [ref(Kind.SHUTDOWN_SCHEDULE)])
    assert Kind.SHUTDOWN_SCHEDULE in cloud.kinds


def test_machine_created_again_by_another_client_is_kept() -> None:
    """The connection is lost while Azure deletes ours; when it is back, another client's machine has its name."""
    cloud = made()
    cloud.fail("delete vm", UNREACHABLE)

    def replace(call: str) -> None:
        if call == "delete vm my-dsvm":
            cloud.body(Kind.VM)["properties"]["vmId"] = "another"

    cloud.on_call = replace
    with pytest.raises(CloudError, match="another client created it again") as caught:
        remove_all(cloud)
    assert caught.value.fault is Fault.IN_USE
    assert cloud.kinds == list(Kind)
    cloud.on_call = lambda _: None
    assert set(remove_unused(task(cloud), ALL, lambda found: found.vm_id != "another")) == set(ALL)
    assert cloud.kinds == list(Kind)


def test_machine_that_another_client_starts_between_two_attempts_is_kept() -> None:
    cloud = made()
    cloud.set_power("deallocated")
    cloud.fail("delete vm", BUSY)

    def start(call: str) -> None:
        if call == "delete vm my-dsvm":
            cloud.set_power("running")

    cloud.on_call = start
    with pytest.raises(CloudError, match="another client started it") as caught:
        remove_all(cloud)
    assert caught.value.fault is Fault.IN_USE
    assert cloud.kinds == list(Kind)


def test_group_with_new_resources_of_another_client_is_kept() -> None:
    cloud = made()
    cloud.fail("delete resource-group", UNREACHABLE)
    bodies = {kind: cloud.body(kind) for kind in (Kind.NSG, Kind.VNET)}

    def create(call: str) -> None:
        if call.startswith("delete resource-group"):
            for kind, body in bodies.items():
                cloud.add(kind, body)

    cloud.on_call = create
    with pytest.raises(CloudError, match="GroupNotEmpty"):
        remove_all(cloud)
    assert cloud.kinds == [Kind.RESOURCE_GROUP, Kind.NSG, Kind.VNET]


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
    assert order(cloud) == {}


def test_each_resource_is_deleted_once() -> None:
    cloud = made()
    remove_all(cloud, [*ALL, *ALL])
    deletions = [call for call in cloud.calls if call.startswith("delete ")]
    assert sorted(deletions) == sorted(set(deletions))
    assert cloud.parts == {}


def test_only_requested_resources_are_deleted() -> None:
    cloud = made()
    cloud.remove(Kind.VM)
    remove_all(cloud, [ref(Kind.SHUTDOWN_SCHEDULE)])
    assert cloud.kinds == [kind for kind in Kind if kind not in {Kind.SHUTDOWN_SCHEDULE, Kind.VM}]


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
