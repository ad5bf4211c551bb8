"""Which resources are ours."""

from typing import Any

import pytest

from gpuinfra.models.plan import Kind, Ref
from gpuinfra.provision import tags
from gpuinfra.provision.observed import Observed, is_deletable
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import LEFT_ALONE, Owner, misfit, owner_of, partition
from gpuinfra.provision.remove import attached_by_others, detaching_update, dissociating_update
from gpuinfra.provision.resources import MODULES
from gpuinfra.provision.tags import machine_key
from tests.unit.provision_help import plan_input, spec

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
    """Return a resource as `up` creates it, with changed properties."""
    made = MODULES[kind].desired(plan_input(spec(name=NAME, resource_group=GROUP)))
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
def test_tagged_machine_with_foreign_resources_is_not_ours(found: ObservedResource) -> None:
    assert observed(found).machine is None
    assert observed(found).untagged is not None, "so nothing is done to it"


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (machine(nic="bobs-nic"), "its NIC is not `bob-nic`"),
        (machine("bob_OsDisk_1"), "its disk is not `bob-disk`"),
        (
            machine(networkProfile={"networkInterfaces": [{"id": f"{NICS}/bob-nic"}]}),
            "its NIC `bob-nic` is not set to be deleted with it",
        ),
        (machine("bob_OsDisk_1", "bobs-nic"), "its disk is not `bob-disk` and its NIC is not `bob-nic`"),
    ],
)
def test_tagged_machine_with_another_disk_or_nic_may_be_ours(found: ObservedResource, reason: str) -> None:
    assert (owner_of(found), misfit(found)) == (Owner.UNRECOGNISED, reason)


@pytest.mark.parametrize(
    "found",
    [
        machine(nic="bobs-nic", osProfile={"computerName": NAME}),
        machine(osProfile={"computerName": "db", "linuxConfiguration": {"disablePasswordAuthentication": True}}),
        ObservedResource(Ref(Kind.VM, GROUP, "payroll"), machine(nic="bobs-nic").body),
    ],
)
def test_tagged_machine_that_up_cannot_have_created_is_not_ours(found: ObservedResource) -> None:
    assert owner_of(found) is Owner.LOOKALIKE


def test_tagged_machine_with_our_resources_or_in_its_default_group_is_ours() -> None:
    assert observed(machine()).machine
    default = f"gpuinfra-{NAME}"
    assert observed(machine("bob_OsDisk_1", "bobs-nic", default), group=default).machine


@pytest.mark.parametrize("kind", [Kind.NSG, Kind.VNET, Kind.PUBLIC_IP, Kind.NIC])
def test_tagged_resource_without_a_machine_is_ours_if_it_equals_what_up_creates(kind: Kind) -> None:
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
        part(Kind.NIC, ipConfigurations=[]),
        part(Kind.PUBLIC_IP, idleTimeoutInMinutes=4),
        part(Kind.PUBLIC_IP, dnsSettings={"domainNameLabel": "shop"}),
        part(Kind.DISK),
    ],
)
def test_tagged_resource_that_differs_or_is_used_by_others_is_not_ours(found: ObservedResource) -> None:
    assert not observed(found).is_ours(found)
    assert not observed(machine("bob_OsDisk_1"), found).is_ours(found)


def test_changed_resource_that_our_machine_uses_is_ours() -> None:
    changed = part(Kind.NSG, securityRules=[], networkInterfaces=[{"id": f"{NICS}/bob-nic"}])
    assert observed(machine(), part(Kind.NIC), changed).is_ours(changed)
    assert not observed(machine(), changed).is_ours(changed)


def test_foreign_attachments_are_detached_before_the_machine_is_deleted() -> None:
    data = {"lun": 0, "managedDisk": {"id": f"{PLACE}/Microsoft.Compute/disks/data"}, "deleteOption": "Delete"}
    nics = [{"id": f"{NICS}/{name}", "properties": {"deleteOption": "Delete"}} for name in ("bob-nic", "eve-nic")]
    storage = {"osDisk": {"name": "bob-disk", "deleteOption": "Delete"}, "dataDisks": [data]}
    found = machine(storageProfile=storage, networkProfile={"networkInterfaces": nics})
    assert attached_by_others(found, None) == (f"disk data in group {GROUP}", f"nic eve-nic in group {GROUP}")
    update = detaching_update(found)
    assert update is not None
    sent = update.body["properties"]
    assert sent["storageProfile"] == {"dataDisks": [{**data, "deleteOption": "Detach"}]}
    options = [each["properties"]["deleteOption"] for each in sent["networkProfile"]["networkInterfaces"]]
    assert options == ["Delete", "Detach"]
    assert detaching_update(machine()) is None


def joining_nic(name: str = "primary", subnet: str = "machines") -> ObservedResource:
    """A NIC under our name that joins an NSG, a VNet and a public IP under our names."""
    network = f"{PLACE}/Microsoft.Network/virtualNetworks/{NAME}-vnet/subnets/{subnet}"
    address = {"id": f"{PLACE}/Microsoft.Network/publicIPAddresses/{NAME}-ip"}
    inner = {"subnet": {"id": network}, "publicIPAddress": address}
    return part(Kind.NIC, ipConfigurations=[{"name": name, "properties": inner}])


def test_resources_of_a_forged_nic_are_not_ours() -> None:
    used = [{"id": f"{NICS}/{NAME}-nic"}]
    joined = [
        part(Kind.NSG, securityRules=[], networkInterfaces=used),
        part(Kind.VNET, subnets=[{"name": "default", "properties": {"ipConfigurations": used}}]),
        part(Kind.PUBLIC_IP, idleTimeoutInMinutes=4, ipConfiguration=used[0]),
    ]
    for forged in (joining_nic(), joining_nic(subnet="default"), joining_nic(name="ipconfig1")):
        assert not any(observed(forged, *joined).is_ours(each) for each in joined)
    assert not observed(found := joining_nic(subnet="default")).is_ours(found)


def test_everything_that_an_up_killed_before_the_machine_leaves_is_ours() -> None:
    used = [{"id": f"{NICS}/{NAME}-nic/ipConfigurations/primary"}]
    subnet = {"name": "machines", "properties": {"addressPrefix": "10.77.0.0/24", "ipConfigurations": used}}
    left = [
        joining_nic(),
        part(Kind.NSG, networkInterfaces=[{"id": f"{NICS}/{NAME}-nic"}]),
        part(Kind.VNET, subnets=[subnet]),
        part(Kind.PUBLIC_IP, ipConfiguration=used[0]),
    ]
    assert all(observed(*left).is_ours(each) for each in left)


def test_used_nsg_and_vnet_are_deleted_only_if_they_contain_our_rule_and_subnet() -> None:
    bobs_nsg, bobs_vnet = part(Kind.NSG, securityRules=[]), part(Kind.VNET, subnets=[{"name": "default"}])
    changed = part(Kind.NSG)
    changed.properties["securityRules"].append({"name": "https", "properties": {"priority": 300}})
    found = observed(machine(), joining_nic(), bobs_nsg, bobs_vnet)
    assert all(found.is_ours(each) for each in (bobs_nsg, bobs_vnet))
    assert not any(is_deletable(each, found) for each in (bobs_nsg, bobs_vnet))
    assert all(is_deletable(each, found) for each in (changed, part(Kind.VNET), part(Kind.PUBLIC_IP)))


@pytest.mark.parametrize("group", [GROUP, f"gpuinfra-{NAME}"])
@pytest.mark.parametrize(
    "properties",
    [
        {"virtualNetworkPeerings": [{"name": "hub"}]},
        {"subnets": [{"name": "machines", "properties": {"addressPrefix": "10.77.0.0/24"}}, {"name": "bobs"}]},
    ],
)
def test_vnet_with_subnets_or_peerings_of_others_is_not_deleted(group: str, properties: dict[str, Any]) -> None:
    assert not is_deletable(part(Kind.VNET, **properties), observed(machine(), group=group))


def test_vnet_without_subnets_is_deleted_in_the_default_group() -> None:
    assert is_deletable(part(Kind.VNET, subnets=[]), observed(machine(), group=f"gpuinfra-{NAME}"))


def test_public_ip_of_others_is_taken_off_the_nic_before_the_machine_goes() -> None:
    nic = joining_nic()
    address = {"id": f"{PLACE}/Microsoft.Network/publicIPAddresses/shop-ip", "properties": {"deleteOption": "Delete"}}
    nic.properties["ipConfigurations"].append({"name": "second", "properties": {"publicIPAddress": address}})
    assert attached_by_others(machine(), nic) == (f"public-ip shop-ip in group {GROUP}",)
    update = dissociating_update(machine(), nic)
    assert update is not None
    first, second = (each["properties"] for each in update.body["properties"]["ipConfigurations"])
    assert first["publicIPAddress"]["id"].endswith(f"{NAME}-ip")
    assert "publicIPAddress" not in second
    assert dissociating_update(machine(), joining_nic()) is None
    assert attached_by_others(machine(), joining_nic()) == ()


def test_listed_disk_is_ours_only_in_the_group_of_its_machine_or_in_the_default_group() -> None:
    places = (GROUP, GROUP.upper(), "other", f"gpuinfra-{NAME}")
    bodies = [_listed_disk(group, f"{NAME}-disk") for group in places]
    ours, strange = partition(Kind.DISK, bodies, {machine_key(GROUP, NAME)})
    assert ours == [bodies[0], bodies[1], bodies[3]]
    assert len(strange) == 1
    assert LEFT_ALONE in strange[0]
    assert partition(Kind.DISK, bodies)[0] == [bodies[3]]
    assert partition(Kind.DISK, [_listed_disk(GROUP, "data")], {machine_key(GROUP, NAME)})[0] == []


def _listed_disk(group: str, name: str) -> dict[str, Any]:
    place = f"/subscriptions/s/resourceGroups/{group}/providers/Microsoft.Compute/disks/{name}"
    return {"id": place, "name": name, "tags": {tags.NAME: NAME}}
