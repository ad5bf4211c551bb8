"""Carrying out a plan: the calls, their order, and the created resources after a failure."""

import threading
from typing import Any

import pytest

from gpuinfra.models.plan import Kind
from gpuinfra.provision import tags
from gpuinfra.provision.apply import UNREACHABLE_SECONDS, PlanExecution
from gpuinfra.provision.errors import CloudError, Fault
from tests.unit.provision_help import (
    ALLOCATION,
    BUSY,
    CAPACITY,
    DENIED,
    LARGE,
    NAME,
    UNREACHABLE,
    FakeCloud,
    lines_of,
    made,
    plan_execution,
    plan_input,
    planned,
    ref,
    spec,
    words,
)


def applied(cloud: FakeCloud, **fields: Any) -> PlanExecution:
    """Apply the plan for this spec."""
    work = plan_execution(cloud)
    work.apply(planned(cloud, spec(**fields)))
    return work


def refused(cloud: FakeCloud, **fields: Any) -> tuple[PlanExecution, CloudError]:
    work = plan_execution(cloud)
    with pytest.raises(CloudError) as caught:
        work.apply(planned(cloud, spec(**fields)))
    return work, caught.value


def place(cloud: FakeCloud, call: str) -> int:
    return next(number for number, each in enumerate(cloud.calls) if each.startswith(call))


def lines(work: PlanExecution) -> list[str]:
    return lines_of(work.task)


# Creation


def test_new_machine_has_all_resources() -> None:
    cloud = FakeCloud()
    work = applied(cloud)
    assert cloud.kinds == list(Kind)
    assert planned(cloud).is_empty
    assert sorted(str(each) for each in work.created) == sorted(str(ref(kind)) for kind in Kind if kind != "disk")


def test_resources_are_created_after_those_they_use() -> None:
    cloud = FakeCloud()
    applied(cloud)
    for kind in ("nsg", "vnet", "public-ip"):
        assert place(cloud, "put resource-group") < place(cloud, f"put {kind}") < place(cloud, "put nic")
        assert place(cloud, f"wait {kind}") < place(cloud, "put nic")
    assert place(cloud, "wait nic") < place(cloud, "put vm")


def test_network_resources_are_created_in_parallel() -> None:
    cloud, together = FakeCloud(), threading.Barrier(3)

    def synchronise(call: str) -> None:
        if call.startswith(("put nsg", "put vnet", "put public-ip")):
            together.wait(10)

    cloud.on_call = synchronise
    applied(cloud)
    assert Kind.VM in cloud.kinds


def test_schedule_is_set_as_soon_as_the_machine_is_accepted() -> None:
    cloud = FakeCloud()
    applied(cloud)
    first = place(cloud, "put vm")
    assert cloud.calls[first : first + 4] == [
        "put vm my-dsvm",
        "put shutdown-schedule shutdown-computevm-my-dsvm",
        "wait shutdown-schedule shutdown-computevm-my-dsvm",
        "wait vm my-dsvm",
    ]
    assert len([call for call in cloud.calls if call.startswith("put shutdown-schedule")]) == 1


def test_schedule_is_retried_when_the_machine_exists() -> None:
    cloud = FakeCloud()
    cloud.fail("put shutdown-schedule", CloudError(Fault.ABSENT, "ResourceNotFound", "which machine?"))
    work = applied(cloud)
    assert Kind.SHUTDOWN_SCHEDULE in cloud.kinds
    tries = [number for number, call in enumerate(cloud.calls) if call.startswith("put shutdown-schedule")]
    assert tries[0] < place(cloud, "wait vm") < tries[1]
    assert work.created.count(ref(Kind.SHUTDOWN_SCHEDULE)) == 1


def test_machine_without_a_schedule_is_a_failure() -> None:
    cloud = FakeCloud()
    cloud.fail("put shutdown-schedule", DENIED, times=-1)
    work, error = refused(cloud)
    assert error.subject == "shutdown-schedule shutdown-computevm-my-dsvm"
    assert ref(Kind.VM) in work.created
    assert ref(Kind.SHUTDOWN_SCHEDULE) not in work.created


def test_secret_is_sent_only_to_azure() -> None:
    cloud = FakeCloud()
    work = applied(cloud)
    assert "customData" in cloud.secrets["vm my-dsvm"]["osProfile"]
    assert "customData" not in str([part.body for part in cloud.parts.values()])
    assert "private half" not in repr(work)


def test_empty_plan_makes_no_calls() -> None:
    cloud = made()
    work = applied(cloud)
    assert (cloud.calls, work.created, lines(work)) == ([], [], [])


# Changes


def test_change_in_place_is_one_call() -> None:
    cloud = made()
    work = plan_execution(cloud)
    work.apply(planned(cloud, sources=("203.0.113.9/32",)))
    assert cloud.calls == ["put nsg my-dsvm-nsg", "wait nsg my-dsvm-nsg"]
    assert work.created == []
    assert lines(work) == ["nsg my-dsvm-nsg: changing", "nsg my-dsvm-nsg: changed"]


def test_changes_that_need_the_machine_off_are_made_while_it_is_off() -> None:
    cloud = made()
    work = applied(cloud, sizes=(LARGE,), disk={"size_gib": 200})
    assert cloud.writes == [
        "deallocate vm my-dsvm",
        "patch vm my-dsvm",
        "patch disk my-dsvm-disk",
        "start vm my-dsvm",
    ]
    assert place(cloud, "wait vm") < place(cloud, "patch vm")
    assert work.created == []
    assert cloud.body(Kind.VM)["properties"]["hardwareProfile"] == {"vmSize": LARGE}


def test_deallocated_machine_is_changed_and_started_once() -> None:
    cloud = made()
    cloud.set_power("deallocated")
    applied(cloud, sizes=(LARGE,))
    assert [call for call in cloud.writes if "vm" in call][-2:] == [
        "patch vm my-dsvm",
        "start vm my-dsvm",
    ]
    assert len([call for call in cloud.writes if call.startswith("start")]) == 1


def test_lease_is_set_before_the_machine_starts() -> None:
    cloud = made()
    cloud.set_power("deallocated")
    cloud.body(Kind.VM)["tags"][tags.LEASE_UNTIL] = "2026-11-15T08:00:00Z"
    cloud.body(Kind.SHUTDOWN_SCHEDULE)["properties"]["dailyRecurrence"]["time"] = "0800"
    applied(cloud)
    assert cloud.writes == [
        "patch vm my-dsvm",
        "put shutdown-schedule shutdown-computevm-my-dsvm",
        "start vm my-dsvm",
    ]


def test_machine_that_the_spec_keeps_off_is_only_deallocated() -> None:
    cloud = made()
    applied(cloud, power="deallocated", sizes=(LARGE,))
    assert cloud.writes == ["deallocate vm my-dsvm"]


def test_manually_changed_disk_is_changed_back_while_the_machine_is_off() -> None:
    cloud = made()
    cloud.body(Kind.DISK)["sku"]["name"] = "Premium_LRS"
    assert words(planned(cloud)) == ["change disk"]
    applied(cloud)
    assert cloud.writes == ["deallocate vm my-dsvm", "patch disk my-dsvm-disk", "start vm my-dsvm"]


def test_replacement_waits_for_the_deletion() -> None:
    cloud = made()
    work = applied(cloud, image="dsvm-ubuntu-20.04")
    assert cloud.writes[0] == "delete vm my-dsvm"
    gone = max(number for number, call in enumerate(cloud.calls) if call.startswith("look "))
    assert gone < place(cloud, "put ")
    assert [call for call in cloud.writes if call.startswith("put ")] == [
        "put public-ip my-dsvm-ip",
        "put nic my-dsvm-nic",
        "put vm my-dsvm",
    ]
    assert [str(each) for each in work.created] == [call.removeprefix("put ") for call in cloud.writes[-3:]]
    assert cloud.body(Kind.VM)["properties"]["storageProfile"]["imageReference"]["offer"] == "ubuntu-2004"


def test_leftover_disk_is_deleted_before_the_machine_is_created() -> None:
    cloud = made()
    cloud.remove(Kind.VM)
    applied(cloud)
    assert cloud.writes[0] == "delete disk my-dsvm-disk"
    assert "put vm my-dsvm" in cloud.writes


# Failures


def test_created_resources_are_known_after_a_failure() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", CAPACITY)
    work, error = refused(cloud)
    assert (error.code, error.subject) == ("SkuNotAvailable", "vm my-dsvm")
    expected = {Kind.RESOURCE_GROUP, Kind.NSG, Kind.VNET, Kind.PUBLIC_IP, Kind.NIC}
    assert {each.kind for each in work.created} == expected
    assert set(cloud.kinds) == expected
    assert lines(work)[-1] == "vm my-dsvm: failed: SkuNotAvailable"


def test_machine_that_fails_after_acceptance_is_known_as_created() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", ALLOCATION)
    work, error = refused(cloud)
    assert error.code == "AllocationFailed"
    assert {ref(Kind.VM), ref(Kind.SHUTDOWN_SCHEDULE)} <= set(work.created)


def test_nothing_is_created_on_top_of_a_failed_resource() -> None:
    cloud = FakeCloud()
    cloud.fail("put vnet", DENIED)
    work, _ = refused(cloud)
    assert not {"put nic my-dsvm-nic", "put vm my-dsvm"} & set(cloud.calls)
    assert ref(Kind.VNET) not in work.created
    assert ref(Kind.RESOURCE_GROUP) in work.created


def test_existing_resources_are_not_recorded_as_created() -> None:
    cloud = made()
    for kind in (Kind.VM, Kind.DISK, Kind.SHUTDOWN_SCHEDULE):
        cloud.remove(kind)
    cloud.fail("put vm", CAPACITY)
    work, _ = refused(cloud, tags={"project": "mnist"})
    assert work.created == []


def test_existing_schedule_is_not_recorded_as_created() -> None:
    cloud = made()
    for kind in (Kind.VM, Kind.DISK):
        cloud.remove(kind)
    cloud.body(Kind.SHUTDOWN_SCHEDULE)["properties"]["dailyRecurrence"]["time"] = "0100"
    cloud.fail_operation("put vm", ALLOCATION)
    work, _ = refused(cloud)
    assert ref(Kind.SHUTDOWN_SCHEDULE) not in work.created


def test_busy_resource_is_retried() -> None:
    cloud = FakeCloud()
    cloud.fail("put vnet", BUSY, times=5)
    cloud.fail("wait nic", BUSY)
    applied(cloud)
    assert cloud.kinds == list(Kind)
    assert cloud.time.seconds > 0


def test_short_connection_loss_is_retried() -> None:
    cloud = FakeCloud()
    cloud.fail("put resource-group", UNREACHABLE, times=5)
    applied(cloud)
    assert cloud.kinds == list(Kind)


def test_long_connection_loss_is_a_failure() -> None:
    cloud = FakeCloud()
    cloud.fail("put resource-group", UNREACHABLE, times=-1)
    _, error = refused(cloud)
    assert error.fault is Fault.UNREACHABLE
    assert cloud.time.seconds <= UNREACHABLE_SECONDS


# Following another up


def test_machine_created_by_another_up_is_followed() -> None:
    cloud = FakeCloud()
    plan = planned(cloud)
    other = made()
    machine = other.body(Kind.VM)
    machine["properties"]["provisioningState"] = "Creating"
    machine["tags"]["gpuinfra:host-key"] = "ssh-ed25519 AAAAanother"
    cloud.add(Kind.VM, machine)
    looks: list[str] = []

    def settle(call: str) -> None:
        looks.extend([call] if call == "look vm my-dsvm" else [])
        if len(looks) == 3:
            cloud.body(Kind.VM)["properties"]["provisioningState"] = "Succeeded"

    cloud.on_call = settle
    work = plan_execution(cloud)
    work.apply(plan)
    assert ref(Kind.VM) not in work.created
    assert "vm my-dsvm is already being created; waiting for it" in lines(work)
    assert "put shutdown-schedule shutdown-computevm-my-dsvm" in cloud.calls


def test_follower_replaces_the_schedule_of_an_earlier_machine() -> None:
    cloud = made()
    machine = cloud.body(Kind.VM)
    machine["tags"]["gpuinfra:host-key"] = "ssh-ed25519 AAAAanother"
    for kind in (Kind.VM, Kind.DISK):
        cloud.remove(kind)
    cloud.body(Kind.SHUTDOWN_SCHEDULE)["properties"]["status"] = "Disabled"
    plan = planned(cloud)
    cloud.add(Kind.VM, machine)
    plan_execution(cloud).apply(plan)
    assert cloud.body(Kind.SHUTDOWN_SCHEDULE)["properties"]["status"] == "Enabled"


def test_creation_with_a_lost_response_is_found() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", UNREACHABLE, done=True)
    applied(cloud)
    assert [call for call in cloud.calls if call.startswith("put vm")] == ["put vm my-dsvm"] * 2
    assert cloud.kinds == list(Kind)
    assert planned(cloud).is_empty


def test_failed_machine_of_another_up_is_reported_with_its_reason() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", UNREACHABLE, done=True)
    plan, broken = planned(cloud), [{"code": "ProvisioningState/failed/AllocationFailed"}]

    def spoil(call: str) -> None:
        if call == "look vm my-dsvm":
            cloud.body(Kind.VM)["properties"]["provisioningState"] = "Failed"
            cloud.body(Kind.VM)["properties"]["instanceView"] = {"statuses": broken}

    cloud.on_call = spoil
    with pytest.raises(CloudError) as caught:
        plan_execution(cloud).apply(plan)
    assert (caught.value.fault, caught.value.code) == (Fault.CAPACITY, "AllocationFailed")


def test_machine_deleted_by_another_client_is_a_failure() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", UNREACHABLE, done=True)
    plan = planned(cloud)

    def take(call: str) -> None:
        if call == "look vm my-dsvm" and Kind.VM in cloud.kinds:
            cloud.remove(Kind.VM)

    cloud.on_call = take
    with pytest.raises(CloudError) as caught:
        plan_execution(cloud).apply(plan)
    assert (caught.value.fault, caught.value.code) == (Fault.ABSENT, "ResourceNotFound")


def test_unfinished_machine_of_another_up_times_out() -> None:
    cloud = FakeCloud()
    plan = planned(cloud)
    cloud.add(Kind.VM, {"tags": {tags.NAME: NAME}, "properties": {"provisioningState": "Creating"}})
    with pytest.raises(CloudError) as caught:
        plan_execution(cloud, seconds=60).apply(plan)
    assert caught.value.fault is Fault.TIMEOUT
    assert cloud.time.seconds < 60


@pytest.mark.parametrize("kind", [Kind.VM, Kind.NIC, Kind.PUBLIC_IP, Kind.VNET, Kind.NSG])
def test_foreign_resources_created_meanwhile_are_not_changed(kind: Kind) -> None:
    cloud = FakeCloud()
    plan = planned(cloud)
    theirs = {"tags": {"owner": "bob"}, "properties": {"provisioningState": "Succeeded"}}
    cloud.add(kind, theirs)
    work = plan_execution(cloud)
    with pytest.raises(CloudError) as caught:
        work.apply(plan)
    assert (caught.value.fault, caught.value.subject) == (Fault.TAKEN, str(ref(kind)))
    assert cloud.body(kind)["tags"] == theirs["tags"]
    assert Kind.SHUTDOWN_SCHEDULE not in cloud.kinds
    assert ref(kind) not in work.created


def test_resource_created_by_another_up_meanwhile_is_used() -> None:
    cloud = FakeCloud()
    plan = planned(cloud)
    cloud.add(Kind.NIC, {"tags": {tags.NAME: NAME}, "properties": {}})
    plan_execution(cloud).apply(plan)
    assert cloud.body(Kind.NIC)["properties"]
    assert Kind.VM in cloud.kinds


def test_zone_is_passed_to_the_machine() -> None:
    cloud = FakeCloud()
    work = plan_execution(cloud)
    work.apply(planned(cloud, spec(zones=("2",)), sources=plan_input().sources))
    assert cloud.body(Kind.VM)["zones"] == ["2"]
