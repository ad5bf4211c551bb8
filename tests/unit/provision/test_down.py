"""Deallocating and deleting, and the verification of both."""

import time
from datetime import timedelta
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Exit, Problem
from gpuinfra.models.plan import Kind
from gpuinfra.models.receipt import OffProof, Receipt, Residue
from gpuinfra.provision import tags
from gpuinfra.provision.down import Teardown
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market import address_per_month, disk_per_month
from tests.unit.provision_help import (
    BUSY,
    DENIED,
    GROUP,
    NAME,
    NOW,
    SMALL,
    SUBSCRIPTION,
    UNREACHABLE,
    FakeCloud,
    FakeMarket,
    lines_of,
    made,
    ref,
    spec,
    task,
)

FOREIGN = {"tags": {"owner": "alice"}, "properties": {}}


def teardown(cloud: FakeCloud, group: str | None = None, seconds: float = 3600) -> Teardown:
    return Teardown(NAME, group, task(cloud, seconds))


def lines(work: Teardown) -> list[str]:
    return lines_of(work.task)


# Off


@pytest.mark.parametrize(("seconds", "counts"), [(60, True), (-1, False)])
def test_outputs_count_as_fetched_only_if_the_machine_refused_jobs_until_it_was_off(
    seconds: int, *, counts: bool
) -> None:
    cloud = made()
    state = {"diskState": "Reserved", "LastOwnershipUpdateTime": "2026-11-16T12:00:00+00:00"}
    cloud.body(Kind.DISK)["properties"].update(state)
    work = teardown(cloud)
    work.closed_until = time.time() + seconds
    assert work.deallocate().is_proof
    assert (tags.EMPTY_SINCE in cloud.body(Kind.DISK)["tags"]) is counts


def test_group_is_kept_when_a_resource_was_added_meanwhile() -> None:
    cloud = made()
    disk = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Compute/disks/colleagues"

    def put(call: str) -> None:
        if call.startswith("delete vm"):
            cloud.unknown[disk] = "a colleague"

    cloud.on_call = put
    receipt = teardown(cloud).delete()
    assert Kind.RESOURCE_GROUP in cloud.kinds
    assert any("colleagues" in each for each in receipt.left)


def test_running_machine_is_deallocated_and_verified() -> None:
    cloud = made()
    cloud.moment = NOW + timedelta(hours=3)
    receipt = teardown(cloud).deallocate()
    assert cloud.writes == ["deallocate vm my-dsvm"]
    assert cloud.calls[-1] == "look vm my-dsvm"
    assert receipt == Receipt(
        name=NAME,
        verified=OffProof.DEALLOCATED,
        at=NOW + timedelta(hours=3),
        region="eastus",
        size=SMALL,
        group=GROUP,
        billed_from=NOW,
        billed_to=NOW + timedelta(hours=3),
        price_per_hour=0.5,
        residue=(Residue("disk", "my-dsvm-disk", 19.20), Residue("public-ip", "my-dsvm-ip", 3.65)),
        principal="principal-1",
        disk_per_month=19.20,
        address_per_month=3.65,
        simulated=True,
    )
    assert receipt.is_proof
    assert (receipt.billed_seconds, receipt.cost) == (3 * 3600, 1.5)
    assert receipt.as_json()["verifiedBy"] == "PowerState/deallocated"


@pytest.mark.parametrize("power", ["stopped", "starting", "unknown"])
def test_anything_but_deallocated_is_not_off(power: str) -> None:
    cloud = made()
    cloud.set_power(power)
    assert teardown(cloud).deallocate().verified is OffProof.DEALLOCATED
    assert cloud.writes == ["deallocate vm my-dsvm"]


def test_deallocated_machine_is_only_verified() -> None:
    cloud = made()
    cloud.set_power("deallocated")
    receipt = teardown(cloud).deallocate()
    assert cloud.writes == []
    assert (receipt.verified, receipt.billed_from, receipt.billed_to, receipt.cost) == (
        OffProof.DEALLOCATED,
        None,
        None,
        None,
    )


def test_receipt_names_the_cause() -> None:
    cloud = made()
    work = teardown(cloud)
    work.cause = "reap: the lease is over"
    assert work.deallocate().cause == "reap: the lease is over"
    # It was off before, so this command is not the cause.
    assert work.deallocate().cause == "it was off already"
    assert work.delete().cause == "it was off already"


def test_absent_machine_is_off() -> None:
    receipt = teardown(FakeCloud()).deallocate()
    assert (receipt.verified, receipt.is_proof, receipt.size, receipt.residue) == (OffProof.ABSENT, True, None, ())
    assert receipt.as_json()["verifiedBy"] == "404"


def test_unverified_deallocation_is_not_proof() -> None:
    cloud = made()
    cloud.keeps_power = True
    work = teardown(cloud)
    receipt = work.deallocate()
    assert receipt.verified is None
    assert not receipt.is_proof
    assert receipt.as_json()["off"] is False
    assert 50 < cloud.time.seconds <= 60


def test_unverified_deallocation_is_not_reported_as_deallocated() -> None:
    cloud = made()
    cloud.keeps_power = True
    work = teardown(cloud)
    work.deallocate()
    assert "vm my-dsvm: deallocated" not in lines(work)


def test_machine_deleted_meanwhile_is_off() -> None:
    cloud = made()
    cloud.on_call = lambda call: cloud.remove(Kind.VM) if call == "deallocate vm my-dsvm" else None
    assert teardown(cloud).deallocate().verified is OffProof.ABSENT


def test_missing_operation_does_not_prove_that_the_machine_is_off() -> None:
    cloud = made()
    cloud.keeps_power = True
    cloud.fail("wait vm", CloudError(Fault.ABSENT, "NotFound", "no such operation"))
    work = teardown(cloud)
    assert work.deallocate().verified is None
    assert lines(work)[-1] == "vm my-dsvm: failed: not seen to be off"


@pytest.mark.parametrize("error", [BUSY, UNREACHABLE])
def test_deallocation_is_retried_for_long(error: CloudError) -> None:
    cloud = made()
    cloud.fail("deallocate", error, times=30)
    assert teardown(cloud).deallocate().is_proof


@pytest.mark.parametrize(("seconds", "granted"), [(60.0, [60.0, 30.0]), (3600.0, [3600.0])])
def test_only_looks_may_take_longer_than_the_deadline(
    seconds: float, granted: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = made()
    grants: list[float] = []
    monkeypatch.setattr(cloud, "grant", grants.append)
    cloud.fail("deallocate", UNREACHABLE, times=-1)
    receipt = teardown(cloud, seconds=seconds).deallocate()
    assert (receipt.verified, receipt.left != ()) == (None, True)
    assert grants == granted
    assert cloud.time.seconds <= seconds


def test_refused_deallocation_is_reported_and_proves_nothing() -> None:
    cloud = made()
    cloud.fail("deallocate", DENIED)
    work = teardown(cloud)
    receipt = work.deallocate()
    assert (receipt.verified, receipt.is_proof) == (None, False)
    assert "AuthorizationFailed" in receipt.left[0]
    assert lines(work) == ["vm my-dsvm: deallocating", "vm my-dsvm: failed: AuthorizationFailed"]


def test_machine_without_our_tags_is_reported_and_not_touched() -> None:
    cloud = FakeCloud()
    cloud.add(Kind.VM, FOREIGN)
    for end in (teardown(cloud).deallocate, teardown(cloud).delete):
        with pytest.raises(Problem) as caught:
            end()
        assert caught.value.diagnostics[0].code is Code.UNTAGGED_MACHINE
        assert caught.value.exit_code is Exit.LEFT_BEHIND
    assert cloud.writes == []
    assert cloud.kinds == [Kind.VM]


def test_group_is_found_by_the_name_alone() -> None:
    wanted = spec(resource_group="gpu-team")
    cloud = made(wanted)
    cloud.body(Kind.RESOURCE_GROUP, "gpu-team")["tags"] = {"owner": "alice"}
    assert teardown(cloud).deallocate().verified is OffProof.DEALLOCATED
    assert cloud.writes == ["deallocate vm my-dsvm"]


def test_machine_of_this_name_in_another_group_is_not_touched() -> None:
    cloud = made()
    body = made().body(Kind.VM)
    body["properties"] |= {"networkProfile": {}, "storageProfile": {}}
    other = cloud.add(Kind.VM, body, group="elsewhere")
    for receipt in (teardown(cloud, GROUP).deallocate(), teardown(cloud, GROUP).delete()):
        assert receipt.is_proof
        (kept,) = receipt.kept
        assert kept.startswith("vm my-dsvm in group elsewhere, running: ")
        assert kept.endswith("looks like ours, left alone")
    assert other.power == "running"


# Remaining costs


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
def test_disk_is_priced_as_the_next_larger_tier(size: int, sku: str, price: float | None) -> None:
    assert disk_per_month(size, sku) == price


def test_leftovers_of_a_deleted_machine_still_cost() -> None:
    cloud = made()
    cloud.remove(Kind.VM)
    assert teardown(cloud).deallocate().residue == (
        Residue("disk", "my-dsvm-disk", 19.20),
        Residue("public-ip", "my-dsvm-ip", address_per_month()),
    )


def test_foreign_resources_are_not_our_residue() -> None:
    cloud = FakeCloud()
    cloud.add(Kind.DISK, {**FOREIGN, "sku": {"name": "Premium_LRS"}, "properties": {"diskSizeGB": 512}})
    cloud.add(Kind.PUBLIC_IP, FOREIGN)
    assert teardown(cloud).deallocate().residue == ()


# Deletion


def test_delete_removes_and_verifies_everything() -> None:
    cloud = made()
    receipt = teardown(cloud).delete()
    assert cloud.parts == {}
    assert (receipt.verified, receipt.left, receipt.kept, receipt.residue) == (OffProof.ABSENT, (), (), ())
    assert sorted(receipt.deleted) == sorted(str(ref(kind)) for kind in Kind)
    assert cloud.calls[-1] == f"observe {NAME}"
    assert (receipt.size, receipt.billed_from) == (SMALL, NOW)
    assert receipt.is_proof


def test_second_delete_does_nothing() -> None:
    cloud = made()
    teardown(cloud).delete()
    cloud.calls.clear()
    receipt = teardown(cloud).delete()
    assert (receipt.is_proof, receipt.deleted, cloud.writes) == (True, (), [])


def test_foreign_resources_and_their_group_are_kept() -> None:
    cloud = made()
    theirs = cloud.add(Kind.PUBLIC_IP, FOREIGN, name="theirs")
    cloud.body(Kind.RESOURCE_GROUP)["tags"]["owner"] = "alice"
    receipt = teardown(cloud).delete()
    assert cloud.kinds == [Kind.RESOURCE_GROUP, Kind.PUBLIC_IP]
    assert theirs.body == {"location": "eastus", **FOREIGN}
    assert cloud.body(Kind.RESOURCE_GROUP)["tags"] == {"owner": "alice"}
    assert receipt.kept == (f"resource-group {GROUP}: it contains resources of others: theirs",)
    assert receipt.is_proof
    assert f"resource-group {GROUP}" not in receipt.deleted


def test_kept_group_is_ignored_by_the_next_delete() -> None:
    cloud = made()
    cloud.add(Kind.PUBLIC_IP, FOREIGN, name="theirs")
    teardown(cloud).delete()
    cloud.calls.clear()
    receipt = teardown(cloud).delete()
    assert (receipt.is_proof, receipt.kept, cloud.writes) == (True, (), [])


def test_foreign_group_is_never_deleted() -> None:
    cloud = made()
    cloud.body(Kind.RESOURCE_GROUP)["tags"] = {"owner": "alice"}
    receipt = teardown(cloud, GROUP).delete()
    assert cloud.kinds == [Kind.RESOURCE_GROUP]
    assert (receipt.is_proof, receipt.kept) == (True, ())


def test_group_with_another_of_our_machines_is_not_deleted() -> None:
    cloud = made()
    cloud.add(Kind.PUBLIC_IP, {"tags": {tags.NAME: "another"}}, name="another-ip")
    receipt = teardown(cloud).delete()
    assert cloud.kinds == [Kind.RESOURCE_GROUP, Kind.PUBLIC_IP]
    assert "another-ip" in receipt.kept[0]


@pytest.mark.parametrize(
    ("group", "name"), [("elsewhere", "old-disk"), ("elsewhere", "my-dsvm-disk"), (GROUP, "old-disk")]
)
def test_tag_alone_does_not_make_a_disk_ours(group: str, name: str) -> None:
    cloud = made()
    cloud.add(Kind.DISK, {"tags": {"GPUINFRA:NAME": NAME.upper()}}, group=group, name=name)
    receipt = teardown(cloud).delete()
    assert receipt.is_proof
    assert [part.ref.name for part in cloud.parts.values() if part.ref.kind is Kind.DISK] == [name]
    assert any(name in line and line.endswith("looks like ours, left alone") for line in receipt.kept)


def test_empty_group_with_only_our_tag_is_not_touched() -> None:
    cloud = FakeCloud()
    cloud.add(Kind.RESOURCE_GROUP, {"tags": {tags.NAME: NAME}}, group="payroll", name="payroll")
    (kept,) = teardown(cloud, "payroll").delete().kept
    assert kept.startswith("resource-group payroll")
    assert cloud.writes == []


def test_untagged_disk_is_deleted_with_its_machine() -> None:
    cloud = made()
    cloud.body(Kind.DISK)["tags"] = {}
    assert teardown(cloud).delete().is_proof
    assert cloud.parts == {}


def test_unknown_resource_type_is_kept_and_reported() -> None:
    cloud = made()
    unknown = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Storage/storageAccounts/x"
    cloud.unknown[unknown] = NAME
    receipt = teardown(cloud).delete()
    assert receipt.is_proof
    assert receipt.kept[-1].startswith(unknown)
    assert receipt.kept[-1].endswith("looks like ours, left alone")
    assert cloud.kinds == [Kind.RESOURCE_GROUP]


def test_extension_of_the_machine_does_not_keep_the_group() -> None:
    cloud = made()
    extension = f"{ref(Kind.VM).id(SUBSCRIPTION)}/extensions/AzureMonitorLinuxAgent"
    cloud.unknown[extension] = "none"
    receipt = teardown(cloud).delete()
    assert (receipt.kept, cloud.kinds) == ((), [])


def test_remaining_resources_are_reported_with_the_reason() -> None:
    cloud = made()
    cloud.fail("delete vnet", DENIED, times=-1)
    receipt = teardown(cloud).delete()
    assert not receipt.is_proof
    assert receipt.verified is OffProof.ABSENT
    assert receipt.left == (
        f"resource-group {GROUP}",
        "vnet my-dsvm-vnet",
        "vnet my-dsvm-vnet: AuthorizationFailed: you may not",
    )
    assert not set(receipt.left) & set(receipt.deleted)
    assert "vm my-dsvm" in receipt.deleted


def test_machine_that_cannot_be_deleted_is_deallocated() -> None:
    cloud = made()
    cloud.fail("delete vm", DENIED, times=-1)
    receipt = teardown(cloud).delete()
    assert receipt.verified is OffProof.DEALLOCATED
    assert not receipt.is_proof
    assert "vm my-dsvm" in receipt.left


def test_machine_that_cannot_be_stopped_is_not_off() -> None:
    cloud = made()
    cloud.fail("delete vm", DENIED, times=-1)
    cloud.fail("deallocate", DENIED, times=-1)
    receipt = teardown(cloud).delete()
    assert receipt.verified is None
    assert not receipt.is_proof
    assert "vm my-dsvm" in receipt.left
    assert Kind.SHUTDOWN_SCHEDULE in cloud.kinds


def test_deallocated_machine_that_still_exists_is_not_absent() -> None:
    cloud = made()
    cloud.set_power("deallocated")
    cloud.fail("delete vm", DENIED, times=-1)
    receipt = teardown(cloud).delete()
    assert not receipt.is_proof
    assert receipt.verified is OffProof.DEALLOCATED


def test_deletion_completed_by_another_client_is_not_a_failure() -> None:
    cloud = made()
    cloud.fail("wait vm", CloudError(Fault.OTHER, "Canceled", "by another"))
    cloud.on_call = lambda call: cloud.parts.clear() if call == "wait vm my-dsvm" else None
    assert teardown(cloud).delete().is_proof


def test_ctrl_c_is_not_reported_as_a_failure() -> None:
    cloud = made()
    cloud.fail("wait vm", CloudError(Fault.INTERRUPTED, "Interrupted", ""))
    with pytest.raises(CloudError) as caught:
        teardown(cloud).delete()
    assert caught.value.fault is Fault.INTERRUPTED


def test_spot_machine_has_the_spot_price() -> None:
    cloud = made(spec(priority="spot"))
    receipt = teardown(cloud).deallocate()
    assert (receipt.price_per_hour, receipt.spot) == (0.1, True)


def test_receipt_without_a_known_price_has_no_cost() -> None:
    class NoPrices(FakeMarket):
        def price(self, size: str, region: str, spot: bool = False) -> float | None:
            return None

    receipt: Any = Teardown(NAME, None, task(made(), market=NoPrices())).deallocate()
    assert (receipt.price_per_hour, receipt.cost, receipt.is_proof) == (None, None, True)
