"""What costs money and is in no spec."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuinfra.models.inventory import Reason
from gpuinfra.models.plan import Kind, Ref
from gpuinfra.models.sizes import Rate
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Listed
from gpuinfra.provision.inventory import billed_now, unmanaged, with_disk
from gpuinfra.provision.market import Prices
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.reaping.spec_history import SpecHistory

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
SIZE = "Standard_NC4as_T4_v3"
PRICES = Prices({(SIZE, "eastus"): Rate(0.526, 0.158)})
HERE = "repository"


def row(
    name: str, group: str = "", *, power: str = "running", size: str = SIZE, marks: dict[str, str] | None = None
) -> dict[str, Any]:
    place = f"/subscriptions/s/resourceGroups/{group or f'gpuinfra-{name}'}/providers/x/y/{name}"
    statuses = [{"code": f"PowerState/{power}"}]
    properties = {"hardwareProfile": {"vmSize": size}, "instanceView": {"statuses": statuses}}
    return {"id": place, "name": name, "location": "eastus", "tags": marks or {}, "properties": properties}


def ours(name: str, repository: str = HERE, **more: Any) -> dict[str, Any]:
    marks = {tags.NAME: name, **({tags.REPOSITORY: repository} if repository else {})}
    return row(name, marks=marks, **more)


def found(rows: list[dict[str, Any]], *keys: str, **history: Any) -> list[tuple[str, str]]:
    known = SpecHistory(**{"repository": HERE, **history})
    return [(each.ref.name, each.cause) for each in unmanaged(rows, [], keys, known, NOW, PRICES)]


@pytest.mark.parametrize(
    ("history", "cause"),
    [
        ({}, "no spec in git"),
        ({"deleted": {"old": NOW - timedelta(days=1)}}, "no spec in git since 2026-11-15 12:00Z"),
        ({"committed": frozenset({"old"})}, "no spec in what is checked out, but one in git"),
    ],
)
def test_machine_of_this_repository_without_a_spec_is_found(history: dict[str, Any], cause: str) -> None:
    assert found([ours("old"), ours("new")], "new", **history) == [("old", cause)]


def test_machine_with_a_spec_in_another_folder_or_repository_is_not_found() -> None:
    assert found([ours("old")], present=frozenset({"old"})) == []
    assert found([ours("old", repository="theirs"), ours("older", repository="")]) == []
    assert found([ours("old", repository="theirs")], repository="") == []


def test_outside_git_a_machine_from_outside_git_is_found() -> None:
    assert found([ours("old", repository="")], repository="") == [("old", "no spec in this folder")]


@pytest.mark.parametrize(("age", "count"), [(timedelta(minutes=14), 0), (timedelta(minutes=16), 2)])
def test_disk_and_address_without_a_machine_are_found_after_a_while(age: timedelta, count: int) -> None:
    def part(kind: Kind, name: str, group: str) -> Listed:
        return Listed(Ref(kind, group, name), {tags.NAME: "gone"}, NOW - age)

    parts = [
        part(Kind.DISK, "gone-disk", "gpuinfra-gone"),
        part(Kind.NIC, "gone-nic", "gpuinfra-gone"),
        part(Kind.PUBLIC_IP, "gone-ip", "team"),
    ]
    listed = unmanaged([], parts, [], SpecHistory(), NOW, PRICES)
    commands = ["gpuinfra down gone --delete", "az network public-ip delete --resource-group team --name gone-ip"]
    assert [each.command for each in listed] == commands[:count]
    assert unmanaged([ours("gone")], parts, ["gone"], SpecHistory(repository=HERE), NOW, PRICES) == []


def test_only_gpu_machines_of_others_in_our_groups_are_found() -> None:
    rows = [
        ours("mine"),
        row("notebook", "gpuinfra-mine"),
        row("web", "gpuinfra-mine", size="Standard_D2s_v5"),
        row("theirs", "research"),
        row("shared", "team", size="Standard_ND96asr_v4"),
    ]
    listed = unmanaged(rows, [], ["mine", "team/other"], SpecHistory(), NOW, PRICES)
    assert [(each.ref.name, each.reason, each.per_hour) for each in listed] == [
        ("notebook", Reason.FOREIGN, 0.526),
        ("shared", Reason.FOREIGN, None),
    ]


def test_machine_has_the_price_of_its_disk_and_address() -> None:
    (old,) = unmanaged([ours("old")], [], [], SpecHistory(repository=HERE), NOW, PRICES)
    disk = ObservedResource(
        Ref(Kind.DISK, "gpuinfra-old", "old-disk"),
        {"sku": {"name": "StandardSSD_LRS"}, "properties": {"diskSizeGB": 256}},
    )
    address = Listed(Ref(Kind.PUBLIC_IP, "GPUINFRA-OLD", "old-ip"))
    assert with_disk(old, disk, [address]).per_month == pytest.approx(22.85)
    assert with_disk(old, disk, []).per_month == pytest.approx(19.2)
    assert with_disk(old, None, []).per_month == 0


def test_only_machines_that_are_billed_count_now() -> None:
    rows = [ours("on"), ours("off", power="deallocated"), ours("stopped", power="stopped"), ours("other")]
    assert billed_now(rows, ["on", "off", "stopped"], PRICES) == [0.526, 0.526]
