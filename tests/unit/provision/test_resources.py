"""Each kind of resource: its desired state and its differences."""

import base64
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from gpuinfra.models.base import parse_money
from gpuinfra.models.hours import Hours
from gpuinfra.models.plan import ARM_TYPES, Difference, Kind, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.lease import Terms
from gpuinfra.provision.login import new_host_key
from gpuinfra.provision.market import ImagePlan
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.resources import (
    MODULES,
    NEEDS,
    disk,
    nic,
    nsg,
    public_ip,
    shutdown_schedule,
    vm,
    vnet,
)
from gpuinfra.provision.resources.common import with_others
from tests.unit.provision_help import (
    HOURS,
    KEY,
    LARGE,
    NAME,
    SMALL,
    SUBSCRIPTION,
    change_of,
    lease_of,
    made,
    plan_input,
    planned,
    spec,
)


def found(kind: Kind) -> ObservedResource:
    """Return a resource as it was created."""
    cloud = made()
    return ObservedResource(cloud.parts[kind, "gpuinfra-my-dsvm", plan_input().ref(kind).name].ref, cloud.body(kind))


def differences(kind: Kind, part: ObservedResource, wanted: Resource | None = None) -> list[Difference]:
    return list(MODULES[kind].differences(wanted or MODULES[kind].desired(plan_input()), part))


# All of them


def test_every_kind_has_its_module_and_order() -> None:
    assert list(MODULES) == list(NEEDS) == list(ARM_TYPES) == list(Kind)
    order = list(MODULES)
    assert all(order.index(need) < order.index(kind) for kind, needs in NEEDS.items() for need in needs)


def test_created_resources_do_not_differ() -> None:
    assert {kind: differences(kind, found(kind)) for kind in Kind} == {kind: [] for kind in Kind}


def test_every_resource_has_our_tag_and_region() -> None:
    for module in MODULES.values():
        body = module.desired(plan_input(spec(tags={"project": "mnist"}))).body
        assert body["location"] == "eastus"
        assert (body["tags"][tags.NAME], body["tags"]["project"]) == (NAME, "mnist")


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in {Kind.RESOURCE_GROUP, Kind.DISK}])
def test_region_change_replaces_every_resource(kind: Kind) -> None:
    part = found(kind)
    part.body["location"] = "westus2"
    assert differences(kind, part) == [Difference("region", "westus2", "eastus", replaces=True)]


@pytest.mark.parametrize("kind", Kind)
def test_tag_is_added_in_place(kind: Kind) -> None:
    wanted = MODULES[kind].desired(plan_input(spec(tags={"project": "mnist"})))
    expected = Difference("tag project", "none", "mnist")
    assert expected in differences(kind, found(kind), wanted)
    assert not any(each.replaces or each.needs_off for each in differences(kind, found(kind), wanted))


def test_foreign_tags_are_sent_with_ours() -> None:
    part = found(Kind.VNET)
    part.body["tags"] = {"GPUINFRA:NAME": "MY-DSVM", "owner": "alice"}
    assert with_others(part, vnet.desired(plan_input()).body["tags"]) == {"owner": "alice", tags.NAME: NAME}


# Group


def test_group_may_be_in_any_region() -> None:
    part = found(Kind.RESOURCE_GROUP)
    part.body["location"] = "westus2"
    assert differences(Kind.RESOURCE_GROUP, part) == []


# Security


def rule(**fields: Any) -> ObservedResource:
    part = found(Kind.NSG)
    own = part.body["properties"]["securityRules"][0]["properties"]
    own.update(fields)
    return part


@pytest.mark.parametrize(
    ("sources", "shown"),
    [
        (("203.0.113.7/32",), {"sourceAddressPrefixes": ["203.0.113.7"]}),
        (("203.0.113.7/32",), {"sourceAddressPrefix": "203.0.113.7/32", "sourceAddressPrefixes": []}),
        (("203.0.113.7/32",), {"sourceAddressPrefix": "203.0.113.7", "sourceAddressPrefixes": None}),
        (("203.0.113.7",), {"sourceAddressPrefixes": ["203.0.113.7/32"]}),
        (("10.0.0.0/8", "203.0.113.7/32"), {"sourceAddressPrefixes": ["203.0.113.7/32", "10.0.0.0/8"]}),
    ],
)
def test_spelling_of_sources_is_ignored(sources: tuple[str, ...], shown: dict[str, Any]) -> None:
    wanted = nsg.desired(plan_input(sources=sources))
    assert list(nsg.differences(wanted, rule(**shown))) == []


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        ({"sourceAddressPrefixes": ["203.0.113.9/32"]}, ("ssh from", "203.0.113.9/32", "203.0.113.7/32")),
        ({"sourceAddressPrefixes": [], "sourceAddressPrefix": "*"}, ("ssh from", "*", "203.0.113.7/32")),
        ({"sourceAddressPrefixes": [], "sourceAddressPrefix": "Internet"}, ("ssh from", "Internet", "203.0.113.7/32")),
        ({"sourceAddressPrefixes": []}, ("ssh from", "nowhere", "203.0.113.7/32")),
        ({"destinationPortRange": "*"}, ("rule ssh", "changed by hand", "as the spec says")),
        ({"protocol": "*"}, ("rule ssh", "changed by hand", "as the spec says")),
        ({"access": "Deny"}, ("rule ssh", "changed by hand", "as the spec says")),
    ],
)
def test_changed_rule_is_a_difference(shown: dict[str, Any], expected: tuple[str, str, str]) -> None:
    assert differences(Kind.NSG, rule(**shown)) == [Difference(*expected)]


def test_spelling_of_rule_values_is_ignored() -> None:
    assert differences(Kind.NSG, rule(protocol="TCP", access="allow", priority="100")) == []


def test_foreign_rule_and_missing_rule_are_differences() -> None:
    part = rule()
    part.body["properties"]["securityRules"][0]["name"] = "web"
    assert differences(Kind.NSG, part) == [
        Difference("ssh from", "nowhere", "203.0.113.7/32"),
        Difference("rule web", "added by hand", "removed"),
    ]


def test_only_ssh_is_allowed() -> None:
    (only,) = nsg.desired(plan_input(sources=("10.0.0.0/8", "203.0.113.7/32"))).body["properties"]["securityRules"]
    assert only["properties"]["sourceAddressPrefixes"] == ["10.0.0.0/8", "203.0.113.7/32"]
    assert (only["properties"]["destinationPortRange"], only["properties"]["direction"]) == ("22", "Inbound")


# Network


def test_missing_subnet_is_restored() -> None:
    part = found(Kind.VNET)
    part.body["properties"]["subnets"] = []
    assert differences(Kind.VNET, part) == [Difference("subnet machines", "missing", vnet.RANGE)]


def test_foreign_subnet_is_not_a_difference() -> None:
    part = found(Kind.VNET)
    part.body["properties"]["subnets"].append({"name": "theirs"})
    assert differences(Kind.VNET, part) == []


def test_network_update_keeps_foreign_subnets() -> None:
    cloud = made()
    properties = cloud.body(Kind.VNET)["properties"]
    properties["addressSpace"]["addressPrefixes"].append("10.78.0.0/24")
    properties["subnets"].append({"name": "theirs", "properties": {"addressPrefix": "10.78.0.0/24"}})
    resource = change_of(planned(cloud, spec(tags={"project": "mnist"})), Kind.VNET).resource
    assert resource is not None
    assert [subnet["name"] for subnet in resource.body["properties"]["subnets"]] == ["machines", "theirs"]
    assert "10.78.0.0/24" in resource.body["properties"]["addressSpace"]["addressPrefixes"]


# Address and interface


def test_address_is_static_and_standard() -> None:
    body = public_ip.desired(plan_input()).body
    assert body["sku"] == {"name": "Standard"}
    assert body["properties"]["publicIPAllocationMethod"] == "Static"


def test_address_nic_and_disk_are_deleted_with_the_machine() -> None:
    (configuration,) = nic.desired(plan_input()).body["properties"]["ipConfigurations"]
    assert configuration["properties"]["publicIPAddress"]["properties"] == {"deleteOption": "Delete"}
    body = vm.desired(plan_input()).body["properties"]
    assert body["networkProfile"]["networkInterfaces"][0]["properties"]["deleteOption"] == "Delete"
    assert body["storageProfile"]["osDisk"]["deleteOption"] == "Delete"


def test_changed_nic_references_are_differences() -> None:
    part = found(Kind.NIC)
    del part.body["properties"]["networkSecurityGroup"]
    (configuration,) = part.body["properties"]["ipConfigurations"]
    configuration["properties"]["subnet"] = {"id": "/subscriptions/x/…/subnets/other"}
    configuration["properties"]["publicIPAddress"] = None
    assert differences(Kind.NIC, part) == [
        Difference("security group", "another or none", "my-dsvm-nsg"),
        Difference("subnet", "another or none", "machines"),
        Difference("address", "another or none", "my-dsvm-ip"),
    ]


@pytest.mark.parametrize("configurations", [None, [], [{}]])
def test_empty_nic_has_its_differences(configurations: Any) -> None:
    part = found(Kind.NIC)
    part.body["properties"]["ipConfigurations"] = configurations
    assert [each.what for each in differences(Kind.NIC, part)] == ["subnet", "address"]


# Disk


@pytest.mark.parametrize(
    ("size", "sku", "expected"),
    [
        (100, "StandardSSD_LRS", [Difference("size", "100 GiB", "150 GiB", needs_off=True)]),
        (200, "StandardSSD_LRS", [Difference("size", "200 GiB", "150 GiB", replaces=True, needs_off=True)]),
        (150, "Standard_LRS", [Difference("kind", "Standard_LRS", "StandardSSD_LRS", needs_off=True)]),
        (150, "Premium_ZRS", [Difference("kind", "Premium_ZRS", "StandardSSD_LRS", replaces=True, needs_off=True)]),
        (None, "StandardSSD_LRS", []),
    ],
)
def test_disk_grows_in_place_and_never_shrinks(size: int | None, sku: str, expected: list[Difference]) -> None:
    body = {"tags": {tags.NAME: NAME}, "sku": {"name": sku}, "properties": {"diskSizeGB": size}}
    assert list(disk.differences(disk.desired(plan_input()), ObservedResource(found(Kind.DISK).ref, body))) == expected


# Machine


def test_machine_body_follows_the_spec() -> None:
    body = vm.desired(plan_input()).body
    properties = body["properties"]
    assert properties["hardwareProfile"] == {"vmSize": SMALL}
    assert properties["storageProfile"]["imageReference"]["offer"] == "ubuntu-2204"
    assert properties["storageProfile"]["osDisk"]["name"] == "my-dsvm-disk"
    (key,) = properties["osProfile"]["linuxConfiguration"]["ssh"]["publicKeys"]
    assert key == {"path": "/home/azureuser/.ssh/authorized_keys", "keyData": KEY}
    assert properties["osProfile"]["linuxConfiguration"]["disablePasswordAuthentication"] is True
    assert not {"zones", "plan"} & set(body)
    assert not {"priority", "evictionPolicy", "billingProfile"} & set(properties)
    assert set(body["tags"]) == {
        *(tags.NAME, tags.DIGEST, tags.ON_SINCE, tags.LEASE_UNTIL, tags.TERMS, tags.HOST_KEY, tags.TARGET),
    }
    assert body["tags"][tags.LEASE_UNTIL] == "2026-11-16T12:00:00Z"
    assert body["tags"][tags.TERMS] == "lease=4h idle=20m"


@pytest.mark.parametrize(
    ("price", "kept", "expected"),
    [
        (0.5, None, "lease=4h idle=20m cap=10h"),
        (0.63, None, "lease=4h idle=20m cap=7h56m"),  # never more than the price
        (1e6, None, "lease=4h idle=20m cap=1m"),
        (None, None, "lease=4h idle=20m"),
        (0.5, Terms(timedelta(hours=4), timedelta(minutes=20), timedelta(hours=3)), "lease=4h idle=20m cap=3h"),
    ],
)
def test_cost_cap_becomes_a_duration(price: float | None, kept: Terms | None, expected: str) -> None:
    capped = spec(lifecycle={"max_cost": parse_money("5 USD")})
    body = vm.desired(plan_input(capped, price_per_hour=price, kept_terms=kept)).body
    assert body["tags"][tags.TERMS] == expected


@pytest.mark.parametrize(("price", "expected"), [(None, -1), (0.3, 0.3)])
def test_evicted_spot_machine_is_deallocated(price: float | None, expected: float) -> None:
    properties = vm.desired(plan_input(spec(priority="spot", spot={"max_price": price}))).body["properties"]
    assert (properties["priority"], properties["evictionPolicy"]) == ("Spot", "Deallocate")
    assert properties["billingProfile"] == {"maxPrice": expected}


@pytest.mark.parametrize("profile", [None, {}, {"securityType": "standard"}])
def test_missing_security_type_is_standard(profile: dict[str, Any] | None) -> None:
    part = found(Kind.VM)
    part.properties["securityProfile"] = profile
    assert differences(Kind.VM, part) == []
    trusted = vm.desired(plan_input(spec(security_type="TrustedLaunch")))
    (only,) = [each for each in differences(Kind.VM, part, trusted) if each.replaces]
    assert (only.what, only.old.casefold(), only.new) == ("security type", "standard", "TrustedLaunch")


def test_trusted_launch_machine_is_replaced_by_a_standard_one() -> None:
    part = found(Kind.VM)
    part.properties["securityProfile"] = {"securityType": "TrustedLaunch"}
    assert differences(Kind.VM, part) == [Difference("security type", "TrustedLaunch", "Standard", replaces=True)]


def test_zone_and_plan_are_top_level_fields() -> None:
    bought = ImagePlan("fortinet", "payg", "fortigate")
    body = vm.desired(plan_input(spec(zones=("2",)), image_plan=bought)).body
    assert body["zones"] == ["2"]
    assert body["plan"] == {"publisher": "fortinet", "name": "payg", "product": "fortigate"}


def test_image_is_split_into_four_names() -> None:
    assert vm.image_reference(spec(image="a:b:c:1.2.3")) == {
        "publisher": "a",
        "offer": "b",
        "sku": "c",
        "version": "1.2.3",
    }


def test_private_host_key_is_sent_and_never_shown() -> None:
    own = new_host_key()
    resource = vm.desired(plan_input(host_key=own))
    assert resource.body["tags"][tags.HOST_KEY] == own.public
    assert own.public.startswith("ssh-ed25519 AAAA")
    assert "PRIVATE" not in json.dumps(resource.body) + repr(resource) + repr(own) + repr(plan_input(host_key=own))
    text = base64.b64decode(resource.secrets["osProfile"]["customData"]).decode()
    assert text.startswith("#cloud-config\n")
    config = json.loads(text.partition("\n")[2])
    assert config["ssh_keys"] == {"ed25519_private": own.private, "ed25519_public": own.public}
    assert (config["ssh_deletekeys"], config["ssh_genkeytypes"]) == (True, [])
    assert new_host_key().public != own.public


@pytest.mark.parametrize(
    ("wanted", "shown", "same"),
    [
        ("latest", {"version": "latest", "exactVersion": "24.01.01"}, True),
        ("latest", {"version": "25.03.25"}, True),
        ("25.03.25", {"version": "25.03.25"}, True),
        ("25.03.25", {"version": "latest", "exactVersion": "25.03.25"}, True),
        ("25.03.25", {"version": "latest", "exactVersion": "25.06.18"}, False),
        ("latest", {"version": "latest", "sku": "2004-gen2"}, False),
        ("latest", {"version": "latest", "publisher": "MICROSOFT-DSVM"}, True),
    ],
)
def test_newer_image_version_does_not_replace_the_machine(wanted: str, shown: dict[str, str], same: bool) -> None:
    part = found(Kind.VM)
    part.body["properties"]["storageProfile"]["imageReference"].update(shown)
    desired = vm.desired(plan_input(spec(image=f"microsoft-dsvm:ubuntu-2204:2204-gen2:{wanted}")))
    images = [each for each in vm.differences(desired, part) if each.what == "image"]
    assert (images == []) == same
    assert all(each.replaces for each in images)


def test_machine_without_an_image_reference_differs() -> None:
    part = found(Kind.VM)
    del part.body["properties"]["storageProfile"]["imageReference"]
    assert differences(Kind.VM, part)[0].old == "?:?:?:?"


def test_patch_contains_only_changes() -> None:
    part = found(Kind.VM)
    part.body["tags"]["owner"] = "alice"
    same = vm.update(vm.desired(plan_input()), part)
    assert set(same.body) == {"tags"}
    assert same.body["tags"] == part.body["tags"]
    assert same.secrets == {}
    larger = vm.update(vm.desired(plan_input(spec(sizes=(LARGE,)))), part)
    assert larger.body["properties"] == {"hardwareProfile": {"vmSize": LARGE}}


def test_spot_price_is_patched() -> None:
    wanted = vm.desired(plan_input(spec(priority="spot", spot={"max_price": 0.3})))
    part = found(Kind.VM)
    assert vm.update(wanted, part).body["properties"] == {"billingProfile": {"maxPrice": 0.3}}
    part.body["properties"]["billingProfile"] = {"maxPrice": 0.3}
    assert "properties" not in vm.update(wanted, part).body


def test_tag_differences_are_readable() -> None:
    part = found(Kind.VM)
    part.body["tags"] = {tags.NAME: NAME, tags.DIGEST: "sha256:0123456789", tags.HOST_KEY: "another"}
    wanted = vm.desired(plan_input())
    digest = wanted.body["tags"][tags.DIGEST].removeprefix("sha256:")[:8]
    assert {(each.what, each.old, each.new) for each in vm.differences(wanted, part)} == {
        ("spec", "01234567", digest),
        ("on since", "never", "2026-11-16T08:00:00Z"),
        ("lease until", "none", "2026-11-16T12:00:00Z"),
        ("terms", "none", "lease=4h idle=20m"),
        (f"tag {tags.TARGET}", "none", "my_dsvm"),
    }


def test_hours_too_long_for_a_tag_are_omitted() -> None:
    hours = Hours.model_validate(HOURS)
    assert tags.HOURS in vm.desired(plan_input(spec(lifecycle={"hours": hours}))).body["tags"]
    many = Hours.model_validate({**HOURS, "on": tuple(f"mon 08:{minute:02}-19:00" for minute in range(40))})
    assert tags.HOURS not in vm.desired(plan_input(spec(lifecycle={"hours": many}))).body["tags"]


# Schedule


def test_the_daily_stop_is_35_minutes_after_the_end_of_the_lease() -> None:
    properties = shutdown_schedule.desired(plan_input()).body["properties"]
    assert (properties["status"], properties["timeZoneId"]) == ("Enabled", "UTC")
    assert properties["dailyRecurrence"] == {"time": "1235"}
    assert properties["targetResourceId"] == plan_input().ref(Kind.VM).id(SUBSCRIPTION)


@pytest.mark.parametrize(("hours", "status"), [(23.4, "Enabled"), (23.5, "Disabled"), (100, "Disabled")])
def test_schedule_is_disabled_for_a_lease_of_a_day(hours: float, status: str) -> None:
    assert shutdown_schedule.desired(plan_input(lease=lease_of(hours))).body["properties"]["status"] == status


def test_long_lease_is_scheduled_on_its_last_day() -> None:
    until = datetime(2026, 11, 20, 1, 30, tzinfo=timezone(timedelta(hours=-2)))
    before = shutdown_schedule.schedule_for(until, until - timedelta(hours=23, minutes=25))
    assert before == {"status": "Disabled", "dailyRecurrence": {"time": "0405"}}
    assert shutdown_schedule.schedule_for(until, until - timedelta(hours=23, minutes=24))["status"] == "Enabled"


@pytest.mark.parametrize(
    "shown",
    [
        {"dailyRecurrence": {"time": "1300"}},
        {"dailyRecurrence": None},
        {"status": "Disabled"},
        {"timeZoneId": "Pacific Standard Time"},
    ],
)
def test_moved_schedule_is_moved_back(shown: dict[str, Any]) -> None:
    part = found(Kind.SHUTDOWN_SCHEDULE)
    part.body["properties"].update(shown)
    (only,) = differences(Kind.SHUTDOWN_SCHEDULE, part)
    assert (only.what, only.new, only.replaces) == ("daily stop", "Enabled 1235 UTC", False)


@pytest.mark.parametrize(
    ("clock", "shown", "expected"),
    [
        ("12:00", {}, None),
        ("12:05", {}, datetime(2026, 11, 16, 12, 35, tzinfo=UTC)),
        ("12:35", {}, None),
        ("12:05", {"status": "Disabled"}, None),
        ("12:05", {"timeZoneId": "Pacific Standard Time"}, None),
        ("12:05", {"dailyRecurrence": {"time": "soon"}}, None),
        ("23:50", {"dailyRecurrence": {"time": "0010"}}, datetime(2026, 11, 17, 0, 10, tzinfo=UTC)),
    ],
)
def test_daily_stop_that_is_too_near_to_be_moved(clock: str, shown: dict[str, Any], expected: datetime | None) -> None:
    part = found(Kind.SHUTDOWN_SCHEDULE)
    part.body["properties"].update(shown)
    assert shutdown_schedule.imminent_stop(part, datetime.fromisoformat(f"2026-11-16T{clock}:00Z")) == expected
    assert shutdown_schedule.imminent_stop(None, datetime(2026, 11, 16, 8, tzinfo=UTC)) is None


def test_schedule_of_another_machine_is_a_difference() -> None:
    part = found(Kind.SHUTDOWN_SCHEDULE)
    part.body["properties"]["targetResourceId"] = plan_input().ref(Kind.VM).id(SUBSCRIPTION) + "-other"
    assert differences(Kind.SHUTDOWN_SCHEDULE, part)


# The tag on a disk whose outputs were fetched

OFF_AT = "2026-11-16T12:00:00.1234567+00:00"


def off_disk(tag: str = OFF_AT, changed: str = OFF_AT, state: str = "Reserved") -> ObservedResource:
    part = found(Kind.DISK)
    properties = {**part.properties, "diskState": state, "LastOwnershipUpdateTime": changed}
    return ObservedResource(part.ref, {**part.body, "properties": properties, "tags": {tags.EMPTY_SINCE: tag}})


def off_machine(power: str = "deallocated", on_since: str = "2026-11-16T08:00:00Z") -> ObservedResource:
    part = found(Kind.VM)
    view = {"instanceView": {"statuses": [{"code": f"PowerState/{power}"}]}}
    body = {**part.body, "properties": {**part.properties, **view}, "tags": {tags.ON_SINCE: on_since}}
    return ObservedResource(part.ref, body)


def test_tag_counts_for_the_time_off_in_which_it_was_written() -> None:
    update = disk.fetched_update(off_disk(tag=""))
    assert update is not None
    assert update.body == {"tags": {tags.EMPTY_SINCE: OFF_AT}}
    assert disk.is_fetched(off_disk(), off_machine())


@pytest.mark.parametrize(
    ("part", "machine"),
    [
        (off_disk(tag=""), off_machine()),
        (off_disk(changed="2026-11-17T12:00:00+00:00"), off_machine()),
        (off_disk(tag="2190-01-01T00:00:00Z"), off_machine()),
        (off_disk(tag="", changed=""), off_machine()),
        (off_disk(tag="now", changed="now"), off_machine()),
        (off_disk(state="Attached"), off_machine()),
        (off_disk(), off_machine(power="running")),
        (off_disk(), off_machine(power="stopped")),
        (off_disk(), off_machine(on_since="2026-11-16T13:00:00Z")),
        (off_disk(), ObservedResource(off_machine().ref, {"tags": {}, "properties": {}})),
    ],
)
def test_stale_or_forged_tag_does_not_count(part: ObservedResource, machine: ObservedResource) -> None:
    assert not disk.is_fetched(part, machine)


@pytest.mark.parametrize("part", [off_disk(state="Attached"), off_disk(changed="")])
def test_disk_of_a_machine_that_is_on_is_not_tagged(part: ObservedResource) -> None:
    assert disk.fetched_update(part) is None
