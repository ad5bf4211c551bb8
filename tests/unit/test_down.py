"""Off or gone, and the proof of it."""

from datetime import timedelta
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Exit, Problem
from gpuinfra.models.receipt import Off, Receipt, Residue
from gpuinfra.models.resource import Kind
from gpuinfra.provision import tags
from gpuinfra.provision.down import Teardown
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market.residue import address_per_month, disk_per_month
from tests.unit.provision_help import (
    BUSY,
    DENIED,
    GROUP,
    NAME,
    NO_JOURNAL,
    NOW,
    SMALL,
    SUBSCRIPTION,
    UNREACHABLE,
    FakeCloud,
    Heard,
    Shop,
    made,
    ref,
    spec,
)

FOREIGN = {"tags": {"owner": "somebody"}, "properties": {}}


def ending(cloud: FakeCloud, group: str | None = None, seconds: float = 3600) -> Teardown:
    return Teardown(NAME, group, cloud, Shop(), Heard(), NO_JOURNAL, cloud.time.deadline(seconds))


def lines(work: Teardown) -> list[str]:
    assert isinstance(work.progress, Heard)
    return work.progress.lines


# Off


def test_group_stays_when_something_was_put_into_it_meanwhile() -> None:
    cloud = made()
    disk = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Compute/disks/colleagues"

    def put(call: str) -> None:
        if call.startswith("delete vm"):
            cloud.unknown[disk] = "a colleague"

    cloud.on_call = put
    receipt = ending(cloud).delete()
    assert Kind.RESOURCE_GROUP in cloud.kinds
    assert any("colleagues" in each for each in receipt.left)


def test_a_machine_that_is_on_is_deallocated_and_seen_to_be_off() -> None:
    cloud = made()
    cloud.moment = NOW + timedelta(hours=3)
    receipt = ending(cloud).deallocate()
    assert cloud.writes == ["deallocate vm my-dsvm"]
    assert cloud.calls[-1] == "look vm my-dsvm"
    assert receipt == Receipt(
        name=NAME,
        verified=Off.DEALLOCATED,
        at=NOW + timedelta(hours=3),
        region="eastus",
        size=SMALL,
        group=GROUP,
        billed_from=NOW,
        billed_to=NOW + timedelta(hours=3),
        price_per_hour=0.5,
        residue=(Residue("disk", "my-dsvm-disk", 19.20), Residue("public-ip", "my-dsvm-ip", 3.65)),
        simulated=True,
    )
    assert receipt.is_proof
    assert (receipt.billed_seconds, receipt.cost) == (3 * 3600, 1.5)
    assert receipt.as_json()["verifiedBy"] == "PowerState/deallocated"


@pytest.mark.parametrize("power", ["stopped", "starting", "unknown"])
def test_anything_but_deallocated_is_not_off(power: str) -> None:
    cloud = made()
    cloud.set_power(power)
    assert ending(cloud).deallocate().verified is Off.DEALLOCATED
    assert cloud.writes == ["deallocate vm my-dsvm"]


def test_a_machine_that_is_off_is_left_alone_and_looked_at() -> None:
    cloud = made()
    cloud.set_power("deallocated")
    receipt = ending(cloud).deallocate()
    assert cloud.writes == []
    assert (receipt.verified, receipt.billed_from, receipt.billed_to, receipt.cost) == (
        Off.DEALLOCATED,
        None,
        None,
        None,
    )


def test_the_receipt_says_who_ended_it() -> None:
    cloud = made()
    work = ending(cloud)
    work.cause = "reap: the lease is over"
    assert work.deallocate().cause == "reap: the lease is over"
    # Whoever finds it off has not ended it.
    assert work.deallocate().cause == "it was off already"
    assert work.delete().cause == "it was off already"


def test_absent_is_off() -> None:
    receipt = ending(FakeCloud()).deallocate()
    assert (receipt.verified, receipt.is_proof, receipt.size, receipt.residue) == (Off.ABSENT, True, None, ())
    assert receipt.as_json()["verifiedBy"] == "404"


def test_off_that_cannot_be_seen_is_not_proven() -> None:
    cloud = made()
    cloud.keeps_power = True
    work = ending(cloud)
    receipt = work.deallocate()
    assert receipt.verified is None
    assert not receipt.is_proof
    assert receipt.as_json()["off"] is False
    assert 50 < cloud.time.seconds <= 60


def test_off_that_cannot_be_seen_is_not_told() -> None:
    cloud = made()
    cloud.keeps_power = True
    work = ending(cloud)
    work.deallocate()
    assert "vm my-dsvm: deallocated" not in lines(work)


def test_a_machine_that_goes_meanwhile_is_off() -> None:
    cloud = made()
    cloud.on_call = lambda call: cloud.remove(Kind.VM) if call == "deallocate vm my-dsvm" else None
    assert ending(cloud).deallocate().verified is Off.ABSENT


def test_an_operation_that_is_not_found_is_no_machine_that_is_off() -> None:
    cloud = made()
    cloud.keeps_power = True
    cloud.fail("wait vm", CloudError(Fault.ABSENT, "NotFound", "no such operation"))
    work = ending(cloud)
    assert work.deallocate().verified is None
    assert lines(work)[-1] == "vm my-dsvm: failed: not seen to be off"


@pytest.mark.parametrize("error", [BUSY, UNREACHABLE])
def test_switching_off_is_not_given_up_easily(error: CloudError) -> None:
    cloud = made()
    cloud.fail("deallocate", error, times=30)
    assert ending(cloud).deallocate().is_proof


def test_a_refusal_is_told_and_proves_nothing() -> None:
    cloud = made()
    cloud.fail("deallocate", DENIED)
    work = ending(cloud)
    receipt = work.deallocate()
    assert (receipt.verified, receipt.is_proof) == (None, False)
    assert "AuthorizationFailed" in receipt.left[0]
    assert lines(work) == ["vm my-dsvm: deallocating", "vm my-dsvm: failed: AuthorizationFailed"]


def test_machine_without_our_tags_is_reported_and_not_touched() -> None:
    cloud = FakeCloud()
    cloud.add(Kind.VM, FOREIGN)
    for end in (ending(cloud).deallocate, ending(cloud).delete):
        with pytest.raises(Problem) as caught:
            end()
        assert caught.value.diagnostics[0].code is Code.UNTAGGED_MACHINE
        assert caught.value.exit_code is Exit.LEFT_BEHIND
    assert cloud.writes == []
    assert cloud.kinds == [Kind.VM]


def test_the_group_is_found_by_nothing_but_the_name() -> None:
    wanted = spec(resource_group="gpu-team")
    cloud = made(wanted)
    cloud.body(Kind.RESOURCE_GROUP, "gpu-team")["tags"] = {"owner": "somebody"}
    assert ending(cloud).deallocate().verified is Off.DEALLOCATED
    assert cloud.writes == ["deallocate vm my-dsvm"]


def test_machine_of_this_name_in_another_group_is_left_alone() -> None:
    cloud = made()
    body = made().body(Kind.VM)
    body["properties"] |= {"networkProfile": {}, "storageProfile": {}}
    other = cloud.add(Kind.VM, body, group="elsewhere")
    for receipt in (ending(cloud, GROUP).deallocate(), ending(cloud, GROUP).delete()):
        assert receipt.is_proof
        (kept,) = receipt.kept
        assert kept.startswith("vm my-dsvm in group elsewhere, running: ")
        assert kept.endswith("looks like ours, left alone")
    assert other.power == "running"


# What still costs


@pytest.mark.parametrize(
    ("size", "sku", "price"),
    [
        (150, "StandardSSD_LRS", 19.20),
        (128, "StandardSSD_LRS", 9.60),
        (129, "StandardSSD_LRS", 19.20),
        (150, "StandardSSD_ZRS", 28.80),
        (4095, "Premium_LRS", 495.57),
        (30, "Standard_LRS", 1.54),
        (150, "UltraSSD_LRS", None),
        (5000, "Premium_LRS", None),
    ],
)
def test_a_disk_is_paid_for_as_the_next_larger_one(size: int, sku: str, price: float | None) -> None:
    assert disk_per_month(size, sku) == price


def test_what_is_left_of_a_machine_that_is_gone_still_costs() -> None:
    cloud = made()
    cloud.remove(Kind.VM)
    assert ending(cloud).deallocate().residue == (
        Residue("disk", "my-dsvm-disk", 19.20),
        Residue("public-ip", "my-dsvm-ip", address_per_month()),
    )


def test_what_is_not_ours_is_not_our_residue() -> None:
    cloud = FakeCloud()
    cloud.add(Kind.DISK, {**FOREIGN, "sku": {"name": "Premium_LRS"}, "properties": {"diskSizeGB": 512}})
    cloud.add(Kind.PUBLIC_IP, FOREIGN)
    assert ending(cloud).deallocate().residue == ()


# Gone


def test_everything_of_ours_goes_and_is_seen_to_be_gone() -> None:
    cloud = made()
    receipt = ending(cloud).delete()
    assert cloud.parts == {}
    assert (receipt.verified, receipt.left, receipt.kept, receipt.residue) == (Off.ABSENT, (), (), ())
    assert sorted(receipt.deleted) == sorted(str(ref(kind)) for kind in Kind)
    assert cloud.calls[-1] == f"observe {NAME}"
    assert (receipt.size, receipt.billed_from) == (SMALL, NOW)
    assert receipt.is_proof


def test_deleting_twice_is_deleting_once() -> None:
    cloud = made()
    ending(cloud).delete()
    cloud.calls.clear()
    receipt = ending(cloud).delete()
    assert (receipt.is_proof, receipt.deleted, cloud.writes) == (True, (), [])


def test_what_is_not_ours_stays_and_so_does_its_group() -> None:
    cloud = made()
    theirs = cloud.add(Kind.PUBLIC_IP, FOREIGN, name="theirs")
    cloud.body(Kind.RESOURCE_GROUP)["tags"]["owner"] = "somebody"
    receipt = ending(cloud).delete()
    assert cloud.kinds == [Kind.RESOURCE_GROUP, Kind.PUBLIC_IP]
    assert theirs.body == {"location": "eastus", **FOREIGN}
    assert cloud.body(Kind.RESOURCE_GROUP)["tags"] == {"owner": "somebody"}
    assert receipt.kept == (f"resource-group {GROUP}: it holds what was not made for this machine: theirs",)
    assert receipt.is_proof
    assert f"resource-group {GROUP}" not in receipt.deleted


def test_a_group_that_was_kept_is_nobodys_business_from_then_on() -> None:
    cloud = made()
    cloud.add(Kind.PUBLIC_IP, FOREIGN, name="theirs")
    ending(cloud).delete()
    cloud.calls.clear()
    receipt = ending(cloud).delete()
    assert (receipt.is_proof, receipt.kept, cloud.writes) == (True, (), [])


def test_a_group_that_we_did_not_make_is_never_deleted() -> None:
    cloud = made()
    cloud.body(Kind.RESOURCE_GROUP)["tags"] = {"owner": "somebody"}
    receipt = ending(cloud, GROUP).delete()
    assert cloud.kinds == [Kind.RESOURCE_GROUP]
    assert (receipt.is_proof, receipt.kept) == (True, ())


def test_a_group_of_another_machine_of_ours_is_not_deleted() -> None:
    cloud = made()
    cloud.add(Kind.PUBLIC_IP, {"tags": {tags.NAME: "another"}}, name="another-ip")
    receipt = ending(cloud).delete()
    assert cloud.kinds == [Kind.RESOURCE_GROUP, Kind.PUBLIC_IP]
    assert "another-ip" in receipt.kept[0]


@pytest.mark.parametrize(
    ("group", "name"), [("elsewhere", "old-disk"), ("elsewhere", "my-dsvm-disk"), (GROUP, "old-disk")]
)
def test_tag_alone_does_not_make_a_disk_ours(group: str, name: str) -> None:
    cloud = made()
    cloud.add(Kind.DISK, {"tags": {"GPUINFRA:NAME": NAME.upper()}}, group=group, name=name)
    receipt = ending(cloud).delete()
    assert receipt.is_proof
    assert [part.ref.name for part in cloud.parts.values() if part.ref.kind is Kind.DISK] == [name]
    assert any(name in line and line.endswith("looks like ours, left alone") for line in receipt.kept)


def test_empty_group_that_only_carries_the_tag_is_left_alone() -> None:
    cloud = FakeCloud()
    cloud.add(Kind.RESOURCE_GROUP, {"tags": {tags.NAME: NAME}}, group="payroll", name="payroll")
    (kept,) = ending(cloud, "payroll").delete().kept
    assert kept.startswith("resource-group payroll")
    assert cloud.writes == []


def test_a_disk_without_a_tag_goes_with_its_machine() -> None:
    cloud = made()
    cloud.body(Kind.DISK)["tags"] = {}
    assert ending(cloud).delete().is_proof
    assert cloud.parts == {}


def test_a_kind_that_is_never_made_here_is_left_and_told() -> None:
    cloud = made()
    unknown = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Storage/storageAccounts/x"
    cloud.unknown[unknown] = NAME
    receipt = ending(cloud).delete()
    assert receipt.is_proof
    assert receipt.kept[-1].startswith(unknown)
    assert receipt.kept[-1].endswith("looks like ours, left alone")
    assert cloud.kinds == [Kind.RESOURCE_GROUP]


def test_what_is_inside_of_what_goes_does_not_keep_the_group() -> None:
    cloud = made()
    extension = f"{ref(Kind.VM).id(SUBSCRIPTION)}/extensions/AzureMonitorLinuxAgent"
    cloud.unknown[extension] = "nobody"
    receipt = ending(cloud).delete()
    assert (receipt.kept, cloud.kinds) == ((), [])


def test_what_is_still_there_is_told_with_the_reason() -> None:
    cloud = made()
    cloud.fail("delete vnet", DENIED, times=-1)
    receipt = ending(cloud).delete()
    assert not receipt.is_proof
    assert receipt.verified is Off.ABSENT
    assert receipt.left == (
        f"resource-group {GROUP}",
        "vnet my-dsvm-vnet",
        "vnet my-dsvm-vnet: AuthorizationFailed: you may not",
    )
    assert not set(receipt.left) & set(receipt.deleted)
    assert "vm my-dsvm" in receipt.deleted


def test_a_machine_that_cannot_be_deleted_is_switched_off_at_least() -> None:
    cloud = made()
    cloud.fail("delete vm", DENIED, times=-1)
    receipt = ending(cloud).delete()
    assert receipt.verified is Off.DEALLOCATED
    assert not receipt.is_proof
    assert "vm my-dsvm" in receipt.left


def test_a_machine_that_is_still_on_is_not_off() -> None:
    cloud = made()
    cloud.fail("delete vm", DENIED, times=-1)
    cloud.fail("deallocate", DENIED, times=-1)
    receipt = ending(cloud).delete()
    assert receipt.verified is None
    assert not receipt.is_proof
    assert "vm my-dsvm" in receipt.left
    assert Kind.SHUTDOWN_SCHEDULE in cloud.kinds


def test_a_machine_that_is_off_and_still_there_is_not_absent() -> None:
    cloud = made()
    cloud.set_power("deallocated")
    cloud.fail("delete vm", DENIED, times=-1)
    receipt = ending(cloud).delete()
    assert not receipt.is_proof
    assert receipt.verified is Off.DEALLOCATED


def test_what_somebody_else_has_finished_is_no_failure() -> None:
    cloud = made()
    cloud.fail("wait vm", CloudError(Fault.OTHER, "Canceled", "by another"))
    cloud.on_call = lambda call: cloud.parts.clear() if call == "wait vm my-dsvm" else None
    assert ending(cloud).delete().is_proof


def test_ctrl_c_is_not_taken_for_a_failure() -> None:
    cloud = made()
    cloud.fail("wait vm", CloudError(Fault.INTERRUPTED, "Interrupted", ""))
    with pytest.raises(CloudError) as caught:
        ending(cloud).delete()
    assert caught.value.fault is Fault.INTERRUPTED


def test_a_spot_machine_is_paid_for_as_one() -> None:
    cloud = made(spec(priority="spot"))
    receipt = ending(cloud).deallocate()
    assert (receipt.price_per_hour, receipt.spot) == (0.1, True)


def test_without_a_market_there_is_no_price() -> None:
    cloud = made()
    work = ending(cloud)
    work.market = None
    receipt: Any = work.deallocate()
    assert (receipt.price_per_hour, receipt.cost, receipt.is_proof) == (None, None, True)
