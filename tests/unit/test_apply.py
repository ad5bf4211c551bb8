"""Carrying a plan out: what is called, in which order, and what is known to be made when it fails."""

import threading
from typing import Any

import pytest

from gpuinfra.models.resource import Kind
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
    Heard,
    applying,
    made,
    planned,
    ref,
    setting,
    spec,
    words,
)


def applied(cloud: FakeCloud, **fields: Any) -> PlanExecution:
    """The plan for this spec, carried out."""
    work = applying(cloud)
    work.apply(planned(cloud, spec(**fields)))
    return work


def refused(cloud: FakeCloud, **fields: Any) -> tuple[PlanExecution, CloudError]:
    work = applying(cloud)
    with pytest.raises(CloudError) as caught:
        work.apply(planned(cloud, spec(**fields)))
    return work, caught.value


def place(cloud: FakeCloud, call: str) -> int:
    return next(number for number, each in enumerate(cloud.calls) if each.startswith(call))


def lines(work: PlanExecution) -> list[str]:
    assert isinstance(work.progress, Heard)
    return work.progress.lines


# Making


def test_a_fresh_machine_is_made_of_its_parts() -> None:
    cloud = FakeCloud()
    work = applied(cloud)
    assert cloud.kinds == list(Kind)
    assert planned(cloud).is_empty
    assert sorted(str(each) for each in work.created) == sorted(str(ref(kind)) for kind in Kind if kind != "disk")


def test_what_uses_another_comes_after_it() -> None:
    cloud = FakeCloud()
    applied(cloud)
    for kind in ("nsg", "vnet", "public-ip"):
        assert place(cloud, "put resource-group") < place(cloud, f"put {kind}") < place(cloud, "put nic")
        assert place(cloud, f"wait {kind}") < place(cloud, "put nic")
    assert place(cloud, "wait nic") < place(cloud, "put vm")


def test_the_parts_of_the_network_are_made_side_by_side() -> None:
    cloud, together = FakeCloud(), threading.Barrier(3)

    def meet(call: str) -> None:
        if call.startswith(("put nsg", "put vnet", "put public-ip")):
            together.wait(10)

    cloud.on_call = meet
    applied(cloud)
    assert Kind.VM in cloud.kinds


def test_the_end_is_set_as_soon_as_the_machine_is_accepted() -> None:
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


def test_an_end_that_cannot_be_set_yet_is_set_when_the_machine_is_there() -> None:
    cloud = FakeCloud()
    cloud.fail("put shutdown-schedule", CloudError(Fault.ABSENT, "ResourceNotFound", "which machine?"))
    work = applied(cloud)
    assert Kind.SHUTDOWN_SCHEDULE in cloud.kinds
    tries = [number for number, call in enumerate(cloud.calls) if call.startswith("put shutdown-schedule")]
    assert tries[0] < place(cloud, "wait vm") < tries[1]
    assert work.created.count(ref(Kind.SHUTDOWN_SCHEDULE)) == 1


def test_a_machine_without_an_end_is_no_success() -> None:
    cloud = FakeCloud()
    cloud.fail("put shutdown-schedule", DENIED, times=-1)
    work, error = refused(cloud)
    assert error.subject == "shutdown-schedule shutdown-computevm-my-dsvm"
    assert ref(Kind.VM) in work.created
    assert ref(Kind.SHUTDOWN_SCHEDULE) not in work.created


def test_the_secret_goes_to_azure_and_nowhere_else() -> None:
    cloud = FakeCloud()
    work = applied(cloud)
    assert "customData" in cloud.secrets["vm my-dsvm"]["osProfile"]
    assert "customData" not in str([part.body for part in cloud.parts.values()])
    assert "private half" not in repr(work)


def test_nothing_to_do_calls_nobody() -> None:
    cloud = made()
    work = applied(cloud)
    assert (cloud.calls, work.created, lines(work)) == ([], [], [])


# Changing


def test_a_change_in_place_is_one_call() -> None:
    cloud = made()
    work = applying(cloud)
    work.apply(planned(cloud, sources=("203.0.113.9/32",)))
    assert cloud.calls == ["put nsg my-dsvm-nsg", "wait nsg my-dsvm-nsg"]
    assert work.created == []
    assert lines(work) == ["nsg my-dsvm-nsg: changing", "nsg my-dsvm-nsg: changed"]


def test_what_needs_the_machine_off_is_changed_while_it_is_off() -> None:
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


def test_a_machine_that_is_off_is_changed_and_started_once() -> None:
    cloud = made()
    cloud.set_power("deallocated")
    applied(cloud, sizes=(LARGE,))
    assert [call for call in cloud.writes if "vm" in call][-2:] == [
        "patch vm my-dsvm",
        "start vm my-dsvm",
    ]
    assert len([call for call in cloud.writes if call.startswith("start")]) == 1


def test_a_machine_has_its_lease_before_it_is_started() -> None:
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


def test_a_machine_that_should_be_off_is_switched_off_and_left_so() -> None:
    cloud = made()
    applied(cloud, power="deallocated", sizes=(LARGE,))
    assert cloud.writes == ["deallocate vm my-dsvm"]


def test_a_disk_that_was_changed_by_hand_is_changed_back_while_the_machine_is_off() -> None:
    cloud = made()
    cloud.body(Kind.DISK)["sku"]["name"] = "Premium_LRS"
    assert words(planned(cloud)) == ["change disk"]
    applied(cloud)
    assert cloud.writes == ["deallocate vm my-dsvm", "patch disk my-dsvm-disk", "start vm my-dsvm"]


def test_a_replacement_deletes_first_and_sees_it_gone() -> None:
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


def test_a_left_over_disk_goes_before_the_machine_is_made() -> None:
    cloud = made()
    cloud.remove(Kind.VM)
    applied(cloud)
    assert cloud.writes[0] == "delete disk my-dsvm-disk"
    assert "put vm my-dsvm" in cloud.writes


# Failing


def test_a_refusal_leaves_what_was_made_known() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", CAPACITY)
    work, error = refused(cloud)
    assert (error.code, error.subject) == ("SkuNotAvailable", "vm my-dsvm")
    expected = {Kind.RESOURCE_GROUP, Kind.NSG, Kind.VNET, Kind.PUBLIC_IP, Kind.NIC}
    assert {each.kind for each in work.created} == expected
    assert set(cloud.kinds) == expected
    assert lines(work)[-1] == "vm my-dsvm: failed: SkuNotAvailable"


def test_a_machine_that_fails_after_it_was_accepted_is_known_to_be_made() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", ALLOCATION)
    work, error = refused(cloud)
    assert error.code == "AllocationFailed"
    assert {ref(Kind.VM), ref(Kind.SHUTDOWN_SCHEDULE)} <= set(work.created)


def test_a_part_that_fails_has_nothing_made_on_top_of_it() -> None:
    cloud = FakeCloud()
    cloud.fail("put vnet", DENIED)
    work, _ = refused(cloud)
    assert not {"put nic my-dsvm-nic", "put vm my-dsvm"} & set(cloud.calls)
    assert ref(Kind.VNET) not in work.created
    assert ref(Kind.RESOURCE_GROUP) in work.created


def test_what_was_there_before_is_not_known_as_made() -> None:
    cloud = made()
    for kind in (Kind.VM, Kind.DISK, Kind.SHUTDOWN_SCHEDULE):
        cloud.remove(kind)
    cloud.fail("put vm", CAPACITY)
    work, _ = refused(cloud, tags={"project": "mnist"})
    assert work.created == []


def test_a_daily_stop_that_was_there_is_not_known_as_made() -> None:
    cloud = made()
    for kind in (Kind.VM, Kind.DISK):
        cloud.remove(kind)
    cloud.body(Kind.SHUTDOWN_SCHEDULE)["properties"]["dailyRecurrence"]["time"] = "0100"
    cloud.fail_operation("put vm", ALLOCATION)
    work, _ = refused(cloud)
    assert ref(Kind.SHUTDOWN_SCHEDULE) not in work.created


def test_busy_is_tried_again() -> None:
    cloud = FakeCloud()
    cloud.fail("put vnet", BUSY, times=5)
    cloud.fail("wait nic", BUSY)
    applied(cloud)
    assert cloud.kinds == list(Kind)
    assert cloud.time.seconds > 0


def test_a_connection_that_is_lost_for_a_moment_is_borne() -> None:
    cloud = FakeCloud()
    cloud.fail("put resource-group", UNREACHABLE, times=5)
    applied(cloud)
    assert cloud.kinds == list(Kind)


def test_a_connection_that_is_lost_for_good_is_a_failure() -> None:
    cloud = FakeCloud()
    cloud.fail("put resource-group", UNREACHABLE, times=-1)
    _, error = refused(cloud)
    assert error.fault is Fault.UNREACHABLE
    assert cloud.time.seconds <= UNREACHABLE_SECONDS


# Following


def test_a_machine_that_another_makes_is_followed() -> None:
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
    work = applying(cloud)
    work.apply(plan)
    assert ref(Kind.VM) not in work.created
    assert "vm my-dsvm is being made already; following that" in lines(work)
    assert "put shutdown-schedule shutdown-computevm-my-dsvm" in cloud.calls


def test_an_answer_that_was_lost_is_found_again() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", UNREACHABLE, done=True)
    applied(cloud)
    assert [call for call in cloud.calls if call.startswith("put vm")] == ["put vm my-dsvm"] * 2
    assert cloud.kinds == list(Kind)
    assert planned(cloud).is_empty


def test_a_machine_that_another_made_in_vain_says_why() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", UNREACHABLE, done=True)
    plan, broken = planned(cloud), [{"code": "ProvisioningState/failed/AllocationFailed"}]

    def spoil(call: str) -> None:
        if call == "look vm my-dsvm":
            cloud.body(Kind.VM)["properties"]["provisioningState"] = "Failed"
            cloud.body(Kind.VM)["properties"]["instanceView"] = {"statuses": broken}

    cloud.on_call = spoil
    with pytest.raises(CloudError) as caught:
        applying(cloud).apply(plan)
    assert (caught.value.fault, caught.value.code) == (Fault.CAPACITY, "AllocationFailed")


def test_a_machine_that_another_took_away_again_is_a_failure() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", UNREACHABLE, done=True)
    plan = planned(cloud)

    def take(call: str) -> None:
        if call == "look vm my-dsvm" and Kind.VM in cloud.kinds:
            cloud.remove(Kind.VM)

    cloud.on_call = take
    with pytest.raises(CloudError) as caught:
        applying(cloud).apply(plan)
    assert (caught.value.fault, caught.value.code) == (Fault.ABSENT, "ResourceNotFound")


def test_a_machine_that_another_never_finishes_is_given_up() -> None:
    cloud = FakeCloud()
    plan = planned(cloud)
    cloud.add(Kind.VM, {"tags": {tags.NAME: NAME}, "properties": {"provisioningState": "Creating"}})
    with pytest.raises(CloudError) as caught:
        applying(cloud, seconds=60).apply(plan)
    assert caught.value.fault is Fault.TIMEOUT
    assert cloud.time.seconds < 60


@pytest.mark.parametrize("kind", [Kind.VM, Kind.NIC, Kind.PUBLIC_IP, Kind.VNET, Kind.NSG])
def test_what_others_create_meanwhile_is_not_changed(kind: Kind) -> None:
    cloud = FakeCloud()
    plan = planned(cloud)
    theirs = {"tags": {"owner": "bob"}, "properties": {"provisioningState": "Succeeded"}}
    cloud.add(kind, theirs)
    work = applying(cloud)
    with pytest.raises(CloudError) as caught:
        work.apply(plan)
    assert (caught.value.fault, caught.value.subject) == (Fault.TAKEN, str(ref(kind)))
    assert cloud.body(kind)["tags"] == theirs["tags"]
    assert Kind.SHUTDOWN_SCHEDULE not in cloud.kinds
    assert ref(kind) not in work.created


def test_part_that_another_up_creates_meanwhile_is_used() -> None:
    cloud = FakeCloud()
    plan = planned(cloud)
    cloud.add(Kind.NIC, {"tags": {tags.NAME: NAME}, "properties": {}})
    applying(cloud).apply(plan)
    assert cloud.body(Kind.NIC)["properties"]
    assert Kind.VM in cloud.kinds


def test_a_place_is_handed_on() -> None:
    cloud = FakeCloud()
    work = applying(cloud)
    work.apply(planned(cloud, spec(zones=("2",)), sources=setting().sources))
    assert cloud.body(Kind.VM)["zones"] == ["2"]
