"""Which resources are ours."""

from typing import Any

import pytest

from gpuinfra.models.resource import Kind, Ref
from gpuinfra.provision import tags
from gpuinfra.provision.attachments import attached_by_others, detaching_update
from gpuinfra.provision.cloud import Observed, ObservedResource
from gpuinfra.provision.resources import MODULES
from tests.unit.provision_help import setting, spec

GROUP, NAME = "bobs-group", "bob"
PLACE = f"/subscriptions/s/resourceGroups/{GROUP}/providers"
NICS = f"{PLACE}/Microsoft.Network/networkInterfaces"


def machine(disk: str = "bob-disk", nic: str = "bob-nic", group: str = GROUP, **changed: Any) -> ObservedResource:
    own = {"id": f"{NICS}/{nic}", "properties": {"deleteOption": "Delete", "primary": True}}
    properties: dict[str, Any] = {
        "storageProfile": {"osDisk": {"name": disk, "deleteOption": "Delete"}},
        "networkProfile": {"networkInterfaces": [own]},
        "osProfile": {"computerName": NAME, "linuxConfiguration": {"disablePasswordAuthentication": True}},
    }
    body = {"tags": {tags.NAME: NAME}, "properties": {**properties, **changed}}
    return ObservedResource(Ref(Kind.VM, group, NAME), body)


def observed(*parts: ObservedResource, group: str = GROUP) -> Observed:
    return Observed(NAME, group, parts)


def part(kind: Kind, **properties: Any) -> ObservedResource:
    """A part as `up` creates it, with these properties instead."""
    made = MODULES[kind].desired(setting(spec(name=NAME, resource_group=GROUP)))
    return ObservedResource(made.ref, {**made.body, "properties": {**made.body["properties"], **properties}})


@pytest.mark.parametrize(
    "found",
    [
        machine("bob_OsDisk_1", "bobs-nic"),
        machine("bob_OsDisk_1"),
        machine(nic="bobs-nic"),
        machine(networkProfile={"networkInterfaces": [{"id": f"{NICS}/bob-nic"}]}),
        machine(osProfile={"computerName": NAME}),
        machine(osProfile={"computerName": "db", "linuxConfiguration": {"disablePasswordAuthentication": True}}),
    ],
)
def test_tagged_machine_that_is_not_made_as_ours_is_not_ours(found: ObservedResource) -> None:
    assert observed(found).machine is None
    assert observed(found).untagged is not None, "so nothing is done to it"


def test_tagged_machine_made_as_ours_or_in_its_default_group_is_ours() -> None:
    assert observed(machine()).machine
    default = f"gpuinfra-{NAME}"
    assert observed(machine("bob_OsDisk_1", "bobs-nic", default), group=default).machine


@pytest.mark.parametrize("kind", [Kind.NSG, Kind.VNET, Kind.PUBLIC_IP, Kind.NIC])
def test_tagged_part_without_a_machine_is_ours_as_up_creates_it(kind: Kind) -> None:
    assert observed(found := part(kind)).is_ours(found)


USER = [{"id": f"{NICS}/payroll-nic/ipConfigurations/one"}]


@pytest.mark.parametrize(
    "found",
    [
        part(Kind.NSG, securityRules=[]),
        part(Kind.NSG, networkInterfaces=USER),
        part(Kind.NSG, subnets=USER),
        part(Kind.VNET, addressSpace={"addressPrefixes": ["10.0.0.0/16"]}),
        part(Kind.VNET, virtualNetworkPeerings=[{"name": "hub"}]),
        part(Kind.PUBLIC_IP, ipConfiguration=USER[0]),
        part(Kind.NIC, virtualMachine={"id": f"{PLACE}/Microsoft.Compute/virtualMachines/payroll"}),
        part(Kind.NIC, networkSecurityGroup=None),
        part(Kind.DISK),
    ],
)
def test_tagged_part_that_differs_or_that_others_use_is_not_ours(found: ObservedResource) -> None:
    assert not observed(found).is_ours(found)
    assert not observed(machine("bob_OsDisk_1"), found).is_ours(found)


def test_part_that_our_machine_uses_is_ours_though_it_was_changed() -> None:
    changed = part(Kind.NSG, securityRules=[], networkInterfaces=[{"id": f"{NICS}/bob-nic"}])
    assert observed(machine(), part(Kind.NIC), changed).is_ours(changed)
    assert not observed(machine(), changed).is_ours(changed)


def test_what_others_attached_is_detached_before_the_machine_goes() -> None:
    data = {"lun": 0, "managedDisk": {"id": f"{PLACE}/Microsoft.Compute/disks/data"}, "deleteOption": "Delete"}
    nics = [{"id": f"{NICS}/{name}", "properties": {"deleteOption": "Delete"}} for name in ("bob-nic", "eve-nic")]
    storage = {"osDisk": {"name": "bob-disk", "deleteOption": "Delete"}, "dataDisks": [data]}
    found = machine(storageProfile=storage, networkProfile={"networkInterfaces": nics})
    assert attached_by_others(found) == (f"disk data in group {GROUP}", f"nic eve-nic in group {GROUP}")
    update = detaching_update(found)
    assert update is not None
    sent = update.body["properties"]
    assert sent["storageProfile"] == {"dataDisks": [{**data, "deleteOption": "Detach"}]}
    options = [each["properties"]["deleteOption"] for each in sent["networkProfile"]["networkInterfaces"]]
    assert options == ["Delete", "Detach"]
    assert detaching_update(machine()) is None
