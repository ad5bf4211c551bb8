"""Which VM tells that no disk of an earlier VM of its name exists."""

from typing import Any

import pytest

from gpuinfra.models.plan import Kind, Ref
from gpuinfra.provision.observed_resource import ObservedResource, vm_id_without_older_disk

DISKS = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/disks"
OWN = ObservedResource(Ref(Kind.DISK, "g", "my-dsvm-disk"), {})


@pytest.mark.parametrize(
    ("disk", "own", "expected"),
    [
        ({"createOption": "FromImage", "managedDisk": {"id": f"{DISKS}/My-dsvm-disk"}}, OWN, "1"),
        ({"createOption": "FromImage", "managedDisk": {"id": f"{DISKS}/other"}}, None, "1"),
        ({"createOption": "FromImage", "managedDisk": {"id": f"{DISKS}/other"}}, OWN, ""),
        ({"createOption": "Attach", "managedDisk": {"id": f"{DISKS}/my-dsvm-disk"}}, OWN, ""),
        ({}, None, ""),
    ],
    ids=["own disk", "other disk", "own disk beside it", "attached disk", "unknown"],
)
def test_vm_whose_disk_may_be_older_has_no_identity(
    disk: dict[str, Any], own: ObservedResource | None, expected: str
) -> None:
    body = {"properties": {"vmId": "1", "storageProfile": {"osDisk": disk}}}
    assert vm_id_without_older_disk(ObservedResource(Ref(Kind.VM, "g", "my-dsvm"), body), own) == expected
