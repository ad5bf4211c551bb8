"""Managed disks, alone and with machines."""

import json
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError

from tests.integration.sandbox.machine_help import Place, error_of
from tests.integration.sandbox.recordings import DATA, shape


def disk(size: int = 10, sku: Any = "Premium_LRS", **parts: Any) -> Any:
    return {
        "location": "eastus",
        "sku": {"name": sku},
        "properties": {"creationData": {"createOption": "Empty"}, "diskSizeGB": size},
        **parts,
    }


def path(place: Place, name: str) -> str:
    return place.path(name).replace("/virtualMachines/", "/disks/")


def test_empty_disk_is_created(place: Place) -> None:
    made: Any = place.disks.begin_create_or_update(place.group, "d", disk(tags={"a": "b"})).result()
    assert (made.provisioning_state, made.disk_state, made.tier) == ("Succeeded", "Unattached", "P3")
    assert (made.disk_size_gb, made.disk_size_bytes, made.tags) == (10, 10 * 1024**3, {"a": "b"})
    assert [one.name for one in place.disks.list_by_resource_group(place.group)] == ["d"]
    assert "d" in {one.name for one in place.disks.list()}
    larger: Any = {"properties": {"diskSizeGB": 512}, "tags": {}}
    changed: Any = place.disks.begin_update(place.group, "D", larger).result()
    assert (changed.tier, changed.disk_iops_read_write, changed.tags) == ("P20", 2300, {})
    with pytest.raises(HttpResponseError) as caught:
        place.disks.begin_update(place.group, "d", {"properties": {"diskSizeGB": 4}}).result()
    assert error_of(caught.value).code == "OperationNotAllowed"
    place.disks.begin_delete(place.group, "d").result()
    assert place.left() == set()
    assert place.sandbox.http("DELETE", path(place, "d"))[0] == 204


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (disk(0), "InvalidParameter"),
        (disk(sku="Floppy"), "InvalidParameter"),
        ({"location": "eastus"}, "InvalidParameter"),
        ({**disk(), "properties": {"creationData": {"createOption": "Copy"}}}, "NotInSandbox"),
        (disk(zones=["9"]), "InvalidParameter"),
        (disk(sku=[]), "InvalidParameter"),
        ({**disk(), "properties": 7}, "InvalidRequestContent"),
        ([], "InvalidRequestContent"),
    ],
)
def test_invalid_disk_is_refused(place: Place, body: Any, code: str) -> None:
    status, _, answer = place.sandbox.http("PUT", path(place, "d"), body)
    assert answer["error"]["code"] == code
    assert status in (400, 501)
    assert place.left() == set()


def test_attached_disk_cannot_be_deleted_or_attached_again(place: Place) -> None:
    place.disks.begin_create_or_update(place.group, "data", disk()).result()
    body = place.body("m")
    data = {"lun": 0, "createOption": "Attach", "managedDisk": {"id": place.disks.get(place.group, "data").id}}
    body["properties"]["storageProfile"]["dataDisks"] = [data]
    made = place.put("m", body)
    names = [made.storage_profile.os_disk.name, "data"]
    for name in names:
        found = place.disks.get(place.group, name)
        assert (found.disk_state, found.managed_by) == ("Attached", made.id)
        status, _, answer = place.sandbox.http("DELETE", path(place, name))
        assert (status, answer["error"]["code"]) == (409, "OperationNotAllowed")
        assert f"Disk {name} is attached to VM {made.id}" in answer["error"]["message"]
    second = place.body("n")
    second["properties"]["storageProfile"]["dataDisks"] = [data]
    place.refused("n", second, "ConflictingUserInput")
    place.machines.begin_deallocate(place.group, "m").result()
    assert {place.disks.get(place.group, name).disk_state for name in names} == {"Reserved"}
    place.machines.begin_start(place.group, "m").result()
    assert {place.disks.get(place.group, name).disk_state for name in names} == {"Attached"}


def test_data_disks_can_be_attached_and_detached(place: Place) -> None:
    place.make()
    found: Any = place.sandbox.http("GET", place.path("m"))[2]
    profile = found["properties"]["storageProfile"]
    profile["dataDisks"] = [{"lun": 5, "createOption": "Empty", "diskSizeGB": 32, "name": "extra"}]
    changed = place.put("m", found)
    assert changed.storage_profile.data_disks[0].managed_disk.id.endswith("/disks/extra")
    assert place.disks.get(place.group, "extra").managed_by == changed.id
    kept = place.put("m", place.sandbox.http("GET", place.path("m"))[2])
    assert [one.lun for one in kept.storage_profile.data_disks] == [5]
    profile["dataDisks"] = []
    assert place.put("m", found).storage_profile.data_disks == []
    assert place.disks.get(place.group, "extra").disk_state == "Unattached"


def test_os_disk_can_change_only_while_its_vm_is_deallocated(place: Place) -> None:
    made = place.make()
    name = made.storage_profile.os_disk.name
    larger: Any = {"properties": {"diskSizeGB": 256}}
    faster: Any = {"sku": {"name": "Premium_LRS"}}
    for power in ("running", "stopped"):
        if power == "stopped":
            place.machines.begin_power_off(place.group, "m").result()
        for change, says in ((larger, "Cannot resize disk"), (faster, "Cannot change the account type of disk")):
            with pytest.raises(HttpResponseError) as caught:
                place.disks.begin_update(place.group, name, change).result()
            error = error_of(caught.value)
            assert (caught.value.status_code, error.code) == (409, "OperationNotAllowed")
            assert f"{says} {name} while it is attached to running VM {made.id}" in error.message
    found = place.disks.get(place.group, name)
    assert (found.disk_size_gb, found["sku"]["name"]) == (150, "StandardSSD_LRS")
    tagged: Any = {"tags": {"a": "b"}, "properties": {"diskSizeGB": 150}, "sku": {"name": "standardssd_lrs"}}
    assert place.disks.begin_update(place.group, name, tagged).result().tags == {"a": "b"}, "it stays what it is"
    place.machines.begin_deallocate(place.group, "m").result()
    place.disks.begin_update(place.group, name, larger).result()
    changed: Any = place.disks.begin_update(place.group, name, faster).result()
    assert (changed.disk_size_gb, changed.sku.name, changed.disk_state) == (256, "Premium_LRS", "Reserved")
    shown: Any = place.machines.get(place.group, "m")
    assert shown.storage_profile.os_disk.disk_size_gb == 256
    assert shown.storage_profile.os_disk.managed_disk.storage_account_type == "Premium_LRS"
    place.machines.begin_start(place.group, "m").result()
    assert place.disks.get(place.group, name).disk_size_gb == 256


def test_data_disk_of_a_running_vm_can_grow_but_keeps_its_sku(place: Place) -> None:
    data = {"lun": 0, "createOption": "Empty", "diskSizeGB": 32, "name": "data"}
    body = place.body("m")
    body["properties"]["storageProfile"]["dataDisks"] = [data]
    place.put("m", body)
    larger: Any = {"properties": {"diskSizeGB": 64}}
    assert place.disks.begin_update(place.group, "data", larger).result().disk_size_gb == 64
    shown: Any = place.machines.get(place.group, "m")
    assert shown.storage_profile.data_disks[0].disk_size_gb == 64
    with pytest.raises(HttpResponseError, match="account type"):
        place.disks.begin_update(place.group, "data", {"sku": {"name": "Standard_LRS"}}).result()


def test_vm_update_cannot_change_the_sku_of_its_disk(place: Place) -> None:
    made = place.make()
    place.machines.begin_deallocate(place.group, "m").result()
    other: Any = {"properties": {"storageProfile": {"osDisk": {"managedDisk": {"storageAccountType": "Premium_LRS"}}}}}
    with pytest.raises(HttpResponseError) as caught:
        place.machines.begin_update(place.group, "m", other).result()
    assert error_of(caught.value).code == "OperationNotAllowed"
    assert f"update disk resource at {made.storage_profile.os_disk.managed_disk.id}" in error_of(caught.value).message
    found = place.disks.get(place.group, made.storage_profile.os_disk.name)
    assert found["sku"]["name"] == "StandardSSD_LRS"


def test_disks_match_recordings(place: Place) -> None:
    for method, status in (("put", 202), ("get", 200)):
        file = DATA / "arm-traffic" / f"{method}-resourcegroups-providers-microsoft-compute-disks-{status}.json"
        if not file.exists():
            pytest.skip(f"no recording: {file} is not here")
        entries = [
            entry
            for entry in json.loads(file.read_text("utf-8"))
            if entry["response"]["properties"]["creationData"]["createOption"] == "Empty"
        ]
        answer = place.sandbox.http(
            method.upper(), path(place, "d"), disk(tags={"tag1": "d1"}) if method == "put" else None
        )
        assert answer[0] == status
        for entry in entries:
            names = {"azure-asyncoperation", "location"}
            assert names & set(answer[1]) == names & set(entry["headers"])
            # Shared disks are outside of the slice.
            wanted = {key: kind for key, kind in shape(entry["response"]).items() if "maxShares" not in key}
            assert {key: shape(answer[2]).get(key) for key in wanted} == wanted
        assert entries
