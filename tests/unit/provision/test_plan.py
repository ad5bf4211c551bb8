"""The difference between spec and Azure: the plan, in pure functions."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.models.base import parse_money
from gpuinfra.models.hours import Hours
from gpuinfra.models.plan import Action, Candidate, Kind, Price
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.lease import decide, terms_of
from gpuinfra.provision.plan import EachGroupOnce, make_plan
from tests.unit.provision_help import (
    ALLOCATION,
    GROUP,
    HOURS,
    LARGE,
    NAME,
    NOW,
    SMALL,
    SUBSCRIPTION,
    FakeCloud,
    change_of,
    lease_of,
    lines_of,
    made,
    plan_execution,
    plan_input,
    planned,
    ref,
    spec,
    words,
)

FRESH = ["add resource-group", "add nsg", "add vnet", "add public-ip", "add nic", "add vm", "add shutdown-schedule"]


def test_new_resources_are_added_in_dependency_order() -> None:
    plan = planned(FakeCloud())
    assert words(plan) == FRESH
    assert (plan.name, plan.group, plan.subscription) == (NAME, GROUP, SUBSCRIPTION)
    assert plan.count(Action.ADD) == 7
    assert not plan.loses
    assert plan.notes == ()
    assert change_of(plan, Kind.VM).summary == f"{SMALL}, eastus"
    assert change_of(plan, Kind.NSG).summary == "ssh from 203.0.113.7/32"
    assert change_of(plan, Kind.SHUTDOWN_SCHEDULE).summary == "daily stop at 12:35 UTC, 35 min after the lease"


def test_matching_machine_needs_no_change() -> None:
    plan = planned(made())
    assert plan.is_empty
    assert (words(plan), plan.notes) == ([], ())


def test_planning_makes_no_calls() -> None:
    cloud = made()
    planned(cloud, spec(sizes=(LARGE,)))
    assert cloud.calls == []


def test_only_missing_resources_are_added() -> None:
    cloud = made()
    for kind in (Kind.NSG, Kind.SHUTDOWN_SCHEDULE):
        cloud.remove(kind)
    assert words(planned(cloud)) == ["add nsg", "add shutdown-schedule"]


def test_names_ids_and_tags_are_compared_without_case() -> None:
    cloud = made()
    for body in (part.body for part in cloud.parts.values()):
        body["tags"] = {name.upper(): value for name, value in body["tags"].items()}
    machine, interface = cloud.body(Kind.VM), cloud.body(Kind.NIC)
    machine["properties"]["hardwareProfile"]["vmSize"] = SMALL.upper()
    interface["properties"]["networkSecurityGroup"]["id"] = ref(Kind.NSG).id(SUBSCRIPTION).upper()
    configuration = interface["properties"]["ipConfigurations"][0]["properties"]
    configuration["subnet"]["id"] = configuration["subnet"]["id"].upper()
    for kind in Kind:
        part = cloud.parts.pop((kind, GROUP, ref(kind).name))
        loud = replace(part.ref, group=GROUP.upper(), name=part.ref.name.upper())
        cloud.parts[kind, GROUP, ref(kind).name] = replace(part, ref=loud)
    assert planned(cloud).is_empty


# Changes of the spec, and the resulting plan.
CHANGES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"sizes": (LARGE,)}, ["change vm"], [f"size: {SMALL} -> {LARGE}, off", "spec"]),
    ({"disk": {"size_gib": 200}}, ["change vm", "change disk"], ["spec", "size: 150 GiB -> 200 GiB, off"]),
    (
        {"disk": {"sku": "Premium_LRS"}},
        ["change vm", "change disk"],
        ["spec", "kind: StandardSSD_LRS -> Premium_LRS, off"],
    ),
    ({"disk": {"size_gib": 100}}, ["replace vm loses"], []),
    ({"disk": {"sku": "StandardSSD_ZRS"}}, ["replace vm loses"], []),
    ({"image": "dsvm-ubuntu-20.04"}, ["replace vm loses"], ["image"]),
    ({"admin": {"username": "ada"}}, ["replace vm loses"], ["username: azureuser -> ada, replaces"]),
    ({"priority": "spot"}, ["replace vm loses"], ["priority: regular -> spot, replaces"]),
    (
        {"security_type": "TrustedLaunch"},
        ["replace vm loses"],
        ["security type: Standard -> TrustedLaunch, replaces"],
    ),
    ({"zones": ("2",)}, ["replace vm loses"], ["zone: none -> 2, replaces"]),
    (
        {"lifecycle": {"idle": timedelta(minutes=5)}},
        ["change vm"],
        ["terms: lease=4h idle=20m -> lease=4h idle=5m", "spec"],
    ),
    (
        {"lifecycle": {"lease": timedelta(hours=6)}},
        ["change vm", "change shutdown-schedule"],
        ["lease until", "spec", "daily stop: Enabled 1235 UTC -> Enabled 1435 UTC"],
    ),
]


@pytest.mark.parametrize(("fields", "expected", "differences"), CHANGES, ids=[str(row[0]) for row in CHANGES])
def test_changed_spec_has_its_changes(fields: dict[str, Any], expected: list[str], differences: list[str]) -> None:
    plan = planned(made(), spec(**fields))
    network = [word for word in words(plan) if "public-ip" in word or "nic" in word]
    assert [word for word in words(plan) if word not in network] == expected
    # The machine's address and NIC are replaced with it.
    assert network == (["replace public-ip", "replace nic"] if plan.loses else [])
    found = [
        f"{each.what}: {each.old} -> {each.new}{', replaces' * each.replaces}{', off' * each.needs_off}"
        for change in plan.changes
        for each in change.differences
    ]
    assert all(any(text.startswith(wanted) for text in found) for wanted in differences), found


def test_tags_are_set_on_every_resource() -> None:
    plan = planned(made(), spec(tags={"project": "mnist"}))
    assert words(plan) == [f"change {kind}" for kind in Kind]
    assert all("tag project" in {each.what for each in change.differences} for change in plan.changes)


def test_region_change_replaces_everything_except_the_group() -> None:
    plan = planned(made(), spec(regions=("westus2",)))
    assert [change.action for change in plan.changes] == [Action.REPLACE] * 6
    assert Kind.RESOURCE_GROUP not in {change.ref.kind for change in plan.changes}
    assert words(plan)[4] == "replace vm loses"
    assert change_of(plan, Kind.VM).differences[0].what == "region"


@pytest.mark.parametrize("kind", [Kind.NSG, Kind.VNET, Kind.PUBLIC_IP, Kind.NIC])
def test_replaced_network_resource_replaces_the_machine(kind: Kind) -> None:
    cloud = made()
    cloud.body(kind)["location"] = "westus2"
    plan = planned(cloud)
    assert plan.loses
    assert f"replace {kind}" in words(plan)
    assert "replace vm loses" in words(plan)


def test_spelling_of_the_region_is_ignored() -> None:
    cloud = made()
    for part in cloud.parts.values():
        part.body["location"] = "East US"
    assert planned(cloud).is_empty


# Names


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.RESOURCE_GROUP])
def test_foreign_resource_with_our_name_is_never_touched(kind: Kind) -> None:
    cloud = FakeCloud()
    cloud.add(kind, {"tags": {"owner": "alice"}, "properties": {}})
    with pytest.raises(Problem) as caught:
        planned(cloud)
    (found,) = caught.value.diagnostics
    assert found.code is Code.NAME_TAKEN
    assert f"`{ref(kind).name}`, which gpuinfra did not create; it was not changed" in (found.note or "")


def test_all_taken_names_are_reported_at_once() -> None:
    cloud = FakeCloud()
    for kind in (Kind.NSG, Kind.PUBLIC_IP):
        cloud.add(kind, {"properties": {}})
    with pytest.raises(Problem) as caught:
        planned(cloud)
    note = caught.value.diagnostics[0].note or ""
    assert "networkSecurityGroups `my-dsvm-nsg`" in note
    assert "publicIPAddresses `my-dsvm-ip`" in note


def test_machine_of_another_spec_is_foreign() -> None:
    cloud = made()
    cloud.body(Kind.VM)["tags"][tags.NAME] = "another"
    with pytest.raises(Problem):
        planned(cloud)


def test_foreign_group_is_used_and_not_changed() -> None:
    cloud = FakeCloud()
    cloud.add(Kind.RESOURCE_GROUP, {"location": "westus", "tags": {"owner": "alice"}})
    plan = planned(cloud, spec(tags={"project": "mnist"}))
    assert words(plan) == FRESH[1:]
    assert plan.notes == (f"group {GROUP} was not created for this machine: it is used, and not deleted with it",)


def test_second_machine_of_one_name_is_not_created() -> None:
    cloud = FakeCloud()
    elsewhere = json.loads(json.dumps(made().body(Kind.VM)).replace(GROUP, "elsewhere"))
    cloud.add(Kind.VM, elsewhere, group="elsewhere", name=NAME)
    with pytest.raises(Problem) as caught:
        planned(cloud)
    (found,) = caught.value.diagnostics
    assert found.code is Code.NAME_TAKEN
    assert found.note == f"gpuinfra manages a machine `{NAME}` in group `elsewhere`, not in `{GROUP}`"
    assert "down" not in str(found.help), "it would delete the user's own machine"


def test_foreign_machine_with_our_tag_does_not_block_the_plan() -> None:
    cloud = FakeCloud()
    cloud.add(Kind.VM, {"tags": {tags.NAME: NAME}, "properties": {}}, group="elsewhere", name="payroll")
    plan = planned(cloud)
    assert plan.changes
    assert any(note.startswith("vm payroll in group elsewhere") for note in plan.notes)


def test_foreign_resources_with_our_tag_are_noted() -> None:
    cloud = made()
    cloud.add(Kind.DISK, {"tags": {tags.NAME: NAME}}, name="old-disk")
    cloud.add(Kind.PUBLIC_IP, {"tags": {tags.NAME: NAME}}, group="elsewhere")
    plan = planned(cloud)
    assert plan.is_empty
    assert [note.split(":")[0] for note in plan.notes] == [
        f"disk old-disk in group {GROUP}",
        "public-ip my-dsvm-ip in group elsewhere",
    ]


# Machines in unusual states


def test_machine_whose_creation_failed_is_replaced_without_loss() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", ALLOCATION)
    work = plan_execution(cloud)
    with pytest.raises(type(ALLOCATION)):
        work.apply(planned(cloud))
    assert cloud.body(Kind.VM)["properties"]["provisioningState"] == "Failed"
    plan = planned(cloud)
    assert words(plan) == ["replace public-ip", "replace nic", "replace vm"]
    assert not plan.loses


def test_failed_machine_with_a_disk_is_kept() -> None:
    cloud = made()
    cloud.body(Kind.VM)["properties"]["provisioningState"] = "Failed"
    assert planned(cloud).is_empty


def test_leftover_disk_is_destroyed_with_its_data() -> None:
    cloud = made()
    cloud.remove(Kind.VM)
    plan = planned(cloud)
    assert words(plan) == ["destroy disk loses", "add vm"]
    assert plan.loses
    assert plan.changes[0].resource is None


def test_untagged_disk_of_our_machine_is_ours() -> None:
    cloud = made()
    cloud.body(Kind.DISK)["tags"] = {}
    assert words(planned(cloud)) == ["change disk"]


def test_different_key_is_noted_and_not_changed() -> None:
    plan = planned(made(), public_key="ssh-ed25519 AAAAanother me@there")
    assert plan.is_empty
    assert plan.notes == ("the machine has another SSH key than the spec names; a key cannot be changed in place",)


def test_comment_of_a_key_is_ignored() -> None:
    assert planned(made(), public_key=plan_input().public_key.replace("me@here", "me at home")).notes == ()


# Power


@pytest.mark.parametrize("power", ["deallocated", "deallocating", "stopped", "stopping", "unknown"])
def test_machine_that_is_off_is_started(power: str) -> None:
    cloud = made()
    cloud.set_power(power)
    plan = planned(cloud)
    assert words(plan)[0] == "change vm start"
    assert plan.wants_running


@pytest.mark.parametrize(
    ("power", "state", "wanted", "price", "differs"),
    [
        ("deallocated", "Succeeded", spec(), None, False),
        ("deallocating", "Succeeded", spec(), None, False),
        ("deallocated", "Succeeded", spec(lifecycle={"max_cost": parse_money("2 USD")}), 0.7, False),
        ("deallocated", "Succeeded", spec(lifecycle={"max_cost": parse_money("1 USD")}), 0.7, True),
        ("deallocated", "Succeeded", spec(tags={"project": "mnist"}), None, True),
        ("deallocated", "Succeeded", spec(sizes=(LARGE,)), None, True),
        ("deallocated", "Failed", spec(), None, True),
        ("stopped", "Succeeded", spec(), None, True),
        ("unknown", "Succeeded", spec(), None, True),
    ],
)
def test_only_being_off_as_designed_is_not_a_difference(
    power: str, state: str, wanted: Spec, price: float | None, *, differs: bool
) -> None:
    made_for = spec(lifecycle={"max_cost": parse_money("2 USD")}) if wanted.lifecycle.max_cost else spec()
    cloud = made(made_for, price_per_hour=0.5 if price else None)
    cloud.set_power(power)
    cloud.body(Kind.VM)["properties"]["provisioningState"] = state
    cloud.moment = NOW + timedelta(hours=10)
    plan = planned(cloud, wanted, price_per_hour=price)
    assert (plan.power_state, plan.differs, plan.is_empty) == (power, differs, False)


@pytest.mark.parametrize("kind", [Kind.NSG, Kind.SHUTDOWN_SCHEDULE])
def test_missing_part_of_a_machine_that_is_off_is_a_difference(kind: Kind) -> None:
    cloud = made()
    cloud.set_power("deallocated")
    cloud.remove(kind)
    assert planned(cloud).differs


@pytest.mark.parametrize(("after_run", "differs"), [("delete", False), ("deallocate", True), ("keep", True)])
def test_absent_machine_is_as_designed_if_it_is_deleted_after_each_run(after_run: str, *, differs: bool) -> None:
    wanted = spec(lifecycle={"after_run": after_run})
    assert planned(FakeCloud(), wanted).differs is differs
    left = FakeCloud()
    left.add(Kind.DISK, {"tags": {tags.NAME: NAME}})
    assert planned(left, wanted).differs


@pytest.mark.parametrize("power", ["running", "starting"])
def test_running_machine_is_not_changed(power: str) -> None:
    cloud = made()
    cloud.set_power(power)
    assert planned(cloud).is_empty


@pytest.mark.parametrize("power", ["running", "starting", "stopped", "deallocating", "unknown"])
def test_machine_that_the_spec_keeps_off_is_deallocated(power: str) -> None:
    off = spec(power="deallocated")
    cloud = made(off)
    cloud.set_power(power)
    plan = planned(cloud, off)
    assert words(plan) == ["change vm deallocate"]
    assert change_of(plan, Kind.VM).resource is None
    assert not plan.wants_running


def test_deallocated_machine_needs_no_change() -> None:
    off = spec(power="deallocated")
    cloud = made(off)
    cloud.set_power("deallocated")
    assert planned(cloud, off).is_empty


@pytest.mark.parametrize("fields", [{"image": "dsvm-ubuntu-20.04"}, {"regions": ("westus2",)}, {"sizes": (LARGE,)}])
def test_other_differences_wait_while_the_machine_is_off(fields: dict[str, Any]) -> None:
    cloud, wanted = made(), spec(power="deallocated", **fields)
    assert words(planned(cloud, wanted)) == ["change vm deallocate"]
    cloud.set_power("deallocated")
    assert planned(cloud, wanted).is_empty


def test_machine_that_the_spec_keeps_off_is_not_created() -> None:
    cloud = FakeCloud()
    cloud.add(Kind.RESOURCE_GROUP, {"tags": {tags.NAME: NAME}})
    plan = planned(cloud, spec(power="deallocated"))
    assert plan.is_empty
    assert not plan.wants_running


def test_started_machine_gets_a_lease_and_its_schedule() -> None:
    cloud = made()
    cloud.set_power("deallocated")
    cloud.moment = NOW + timedelta(hours=10)
    plan = planned(cloud)
    assert words(plan) == ["change vm start", "change shutdown-schedule"]
    assert {each.what for each in change_of(plan, Kind.VM).differences} == {"on since", "lease until", "power"}


# Tags of the machine


def test_hours_become_a_tag() -> None:
    wanted = spec(lifecycle={"hours": Hours.model_validate(HOURS)})
    plan = planned(made(), wanted)
    assert words(plan) == ["change vm"]
    resource = change_of(plan, Kind.VM).resource
    assert resource is not None
    assert resource.body["tags"][tags.HOURS] == "America/Chicago mon-fri 08:00-19:00"


def test_removed_hours_are_removed_from_the_tag() -> None:
    cloud = made(spec(lifecycle={"hours": Hours.model_validate(HOURS)}))
    work = plan_execution(cloud)
    work.apply(planned(cloud))
    assert tags.HOURS not in cloud.body(Kind.VM)["tags"]


def test_foreign_tags_survive_every_change() -> None:
    cloud = made()
    for part in cloud.parts.values():
        part.body["tags"]["Owner"] = "alice"
    plan = planned(cloud, spec(tags={"project": "mnist"}))
    for change in plan.changes:
        assert change.resource is not None
        assert change.resource.body["tags"]["Owner"] == "alice"
        assert change.resource.body["tags"]["project"] == "mnist"


def test_tag_in_another_case_is_not_duplicated() -> None:
    cloud = made()
    for part in cloud.parts.values():
        part.body["tags"] = {"PROJECT": "cifar", **part.body["tags"]}
    plan = planned(cloud, spec(tags={"project": "mnist"}))
    for change in plan.changes:
        assert change.resource is not None
        assert [name for name in change.resource.body["tags"] if name.casefold() == "project"] == ["project"]


def test_host_key_of_a_machine_is_kept() -> None:
    other = replace(plan_input().host_key, public="ssh-ed25519 AAAAnew")
    assert planned(made(), host_key=other).is_empty
    plan = planned(made(), spec(sizes=(LARGE,)), host_key=other)
    resource = change_of(plan, Kind.VM).resource
    assert resource is not None
    assert resource.body["tags"][tags.HOST_KEY] == "ssh-ed25519 AAAAhost"


# Drift: manual changes


def _grow(cloud: FakeCloud) -> None:
    cloud.body(Kind.DISK)["properties"]["diskSizeGB"] = 300


def _open(cloud: FakeCloud) -> None:
    rules = cloud.body(Kind.NSG)["properties"]["securityRules"]
    rules.append({"name": "all", "properties": {"access": "Allow", "sourceAddressPrefix": "*"}})


def _move_stop(cloud: FakeCloud) -> None:
    cloud.body(Kind.SHUTDOWN_SCHEDULE)["properties"]["dailyRecurrence"]["time"] = "2359"


def _untag(cloud: FakeCloud) -> None:
    del cloud.body(Kind.VM)["tags"][tags.LEASE_UNTIL]


@pytest.mark.parametrize(
    ("drift", "expected"),
    [
        (_grow, ["replace public-ip", "replace nic", "replace vm loses"]),
        (_open, ["change nsg"]),
        (_move_stop, ["change shutdown-schedule"]),
        (_untag, ["change vm"]),
    ],
)
def test_drift_is_corrected(drift: Callable[[FakeCloud], None], expected: list[str]) -> None:
    cloud = made()
    drift(cloud)
    assert words(planned(cloud)) == expected


@pytest.mark.parametrize("kind", [Kind.NSG, Kind.VNET, Kind.PUBLIC_IP, Kind.NIC])
def test_failed_resource_is_updated_again(kind: Kind) -> None:
    cloud = made()
    cloud.body(kind)["properties"]["provisioningState"] = "Failed"
    assert words(planned(cloud)) == [f"change {kind}"]


# Spot, zone, price, lease


def test_summary_names_spot_and_zone() -> None:
    plan = planned(FakeCloud(), spec(priority="spot", zones=("2",)))
    assert change_of(plan, Kind.VM).summary == f"{SMALL}, eastus zone 2, spot"


def test_matching_spot_machine_needs_no_change() -> None:
    wanted = spec(priority="spot", spot={"max_price": 0.3})
    assert planned(made(wanted), wanted).is_empty


def test_spot_price_is_changed_while_the_machine_is_off() -> None:
    plan = planned(made(spec(priority="spot")), spec(priority="spot", spot={"max_price": 0.3}))
    price = change_of(plan, Kind.VM).differences[0]
    assert (price.what, price.old, price.new, price.needs_off) == ("spot price", "-1", "0.3", True)


def test_machine_stays_in_its_zone_when_the_spec_names_none() -> None:
    wanted = spec(zones=("1",))
    plan = planned(made(wanted), spec(), candidate=Candidate("eastus", SMALL))
    assert words(plan) == ["change vm"]


def test_lease_of_a_day_or_more_disables_the_schedule() -> None:
    wanted = spec(lifecycle={"lease": timedelta(days=2)})
    plan = planned(FakeCloud(), wanted)
    assert change_of(plan, Kind.SHUTDOWN_SCHEDULE).summary == "off"
    assert plan.notes == ("Azure's daily schedule cannot express a lease of a day or more: only the tag has its end",)


CAPPED = spec(lifecycle={"max_cost": parse_money("5 USD")})
NO_PRICE = "no price is known: the cost cap has no effect"


@pytest.mark.parametrize(
    ("wanted", "price", "notes"), [(CAPPED, None, (NO_PRICE,)), (CAPPED, 0.5, ()), (spec(), None, ())]
)
def test_cost_cap_without_a_price_is_noted(wanted: Spec, price: float | None, notes: tuple[str, ...]) -> None:
    assert planned(FakeCloud(), wanted, price_per_hour=price).notes == notes


def test_machine_at_its_cost_cap_is_noted() -> None:
    cloud = made(CAPPED, price_per_hour=0.5, lease=lease_of(10))
    cloud.moment = NOW + timedelta(hours=11)
    capped = terms_of(CAPPED.lifecycle, 0.5)
    spent = decide(CAPPED, cloud.look(ref(Kind.VM)), cloud.now(), capped)
    plan = planned(cloud, CAPPED, price_per_hour=0.5, lease=spent)
    assert plan.is_empty
    assert ["it is switched off" in note for note in plan.notes] == [True]


def test_plan_has_the_price() -> None:
    price = Price(0.5, 19.2, 3.65)
    observed = FakeCloud().observe(NAME, GROUP)
    plan = make_plan(plan_input(lease=lease_of()), observed, price)
    assert plan.price == price
    expected = {"perHourUsd": 0.5, "listOf": None, "residuePerMonthUsd": pytest.approx(22.85), "worstCaseUsd": 2.0}
    assert plan.as_json()["price"] == expected


def test_shared_group_is_added_once() -> None:
    plans = [planned(FakeCloud(), spec(name=name, resource_group="team")) for name in ("a", "b")]
    each_once = EachGroupOnce()
    one, two = map(each_once, plans)
    assert [each_once(plan) for plan in plans] == [one, two], "the order of the first calls counts"
    assert words(one)[0] == "add resource-group"
    assert words(two)[0] == "add nsg"
    assert two.notes == ("group team is added with a",)
    assert [plan.notes for plan in map(EachGroupOnce(), [planned(FakeCloud()), planned(made())])] == [(), ()]


@pytest.mark.parametrize(
    ("price", "power", "count"), [(0.3, "deallocated", 1), (0.2, "deallocated", 0), (0.3, "running", 0)]
)
def test_spot_price_above_the_limit_is_noted_for_a_machine_that_is_off(price: float, power: str, count: int) -> None:
    wanted = spec(priority="spot", spot={"max_price": 0.2})
    cloud = made(wanted)
    cloud.set_power(power)
    notes = [note for note in planned(cloud, wanted, price_per_hour=price).notes if "spot.maxPrice: 0.2" in note]
    assert len(notes) == count


def test_plan_as_json_has_no_bodies_and_no_secret() -> None:
    plan = planned(made(), spec(sizes=(LARGE,)))
    plain = plan.as_json()
    assert plain["summary"] == {"add": 0, "change": 1, "replace": 0, "destroy": 0}
    assert plain["candidate"] == {"region": "eastus", "size": LARGE}
    (change,) = plain["changes"]
    assert set(change) == {"action", "kind", "name", "summary", "differences"}
    assert change["differences"][0] == {"what": "size", "old": SMALL, "new": LARGE, "forcesReplacement": False}
    assert "private half" not in repr(planned(FakeCloud()))


# Every applied plan leaves nothing to do: the spec before, the spec after.
STEPS: list[tuple[Spec | None, Spec]] = [
    (None, spec()),
    (spec(), spec(sizes=(LARGE,))),
    (spec(), spec(disk={"size_gib": 300, "sku": "Premium_LRS"})),
    (spec(), spec(disk={"size_gib": 100})),
    (spec(), spec(regions=("westus2",))),
    (spec(), spec(tags={"project": "mnist"})),
    (spec(), spec(power="deallocated")),
    (spec(zones=("1",)), spec(zones=("2",))),
    (spec(priority="spot"), spec(priority="spot", spot={"max_price": 0.3})),
    (spec(), spec(lifecycle={"lease": timedelta(days=2)})),
    (spec(), spec(lifecycle={"hours": Hours.model_validate(HOURS)})),
]


@pytest.mark.parametrize(("before", "after"), STEPS)
def test_applied_plan_leaves_nothing_to_do(before: Spec | None, after: Spec) -> None:
    cloud = made(before) if before else FakeCloud()
    work = plan_execution(cloud)
    work.apply(planned(cloud, after))
    assert words(planned(cloud, after)) == []
    assert not [line for line in lines_of(work.task) if "failed" in line]
