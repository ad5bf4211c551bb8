"""The way up: one candidate after the other, complete rollback, and no loss without consent."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.base import parse_money
from gpuinfra.models.plan import Kind, Plan
from gpuinfra.models.sizes import Rate
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.agent_role import AgentRole, RoleState
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market import ImagePlan, Prices
from gpuinfra.provision.observed import Observed
from gpuinfra.provision.up import Provisioner, UpHooks, UpOutcome
from tests.unit.provision_help import (
    ALLOCATION,
    CAPACITY,
    DENIED,
    GROUP,
    LARGE,
    NAME,
    NOW,
    SMALL,
    UNREACHABLE,
    FakeCloud,
    FakeMarket,
    lines_of,
    made,
    planned,
    provisioner,
    spec,
    words,
)

TWO_REGIONS: dict[str, Any] = {"regions": ("eastus", "westus2")}
TWO_SIZES: dict[str, Any] = {"sizes": (SMALL, LARGE)}
QUOTA = CloudError(Fault.QUOTA, "OperationNotAllowed", "exceeding approved quota")


def never(plan: Plan) -> None:
    assert not plan.loses, f"nothing is lost by {words(plan)}"


def up(
    cloud: FakeCloud, wanted: Spec | None = None, market: FakeMarket | None = None, consent: Any = never
) -> UpOutcome:
    return provisioner(cloud, wanted, market).up(consent)


def problem(work: Provisioner, exit_code: Exit = Exit.FAILED) -> tuple[Diagnostic, ...]:
    with pytest.raises(Problem) as caught:
        work.up(never)
    assert caught.value.exit_code is exit_code
    return caught.value.diagnostics


# Success


def test_new_machine_is_created() -> None:
    cloud = FakeCloud()
    outcome = up(cloud)
    assert cloud.kinds == list(Kind)
    assert outcome.observed is not None
    assert outcome.observed.part(Kind.VM)
    assert outcome.lease_until == NOW + timedelta(hours=4)
    assert len(outcome.plan.changes) == 7
    assert outcome.plan.rejected == ()
    assert outcome.plan.price.residue_per_month == pytest.approx(22.85)


class SeesTheDiskFirst(FakeCloud):
    """Resources are listed one by one: another run creates the machine between two of these requests."""

    has_looked = False

    def observe(self, name: str, group: str | None = None, *, thorough: bool = False) -> Observed:
        found = super().observe(name, group, thorough=thorough)
        if self.has_looked:
            return found
        self.has_looked = True
        return replace(found, parts=tuple(part for part in found.parts if part.ref.kind is not Kind.VM))


def test_disk_of_a_machine_under_creation_is_not_a_leftover() -> None:
    cloud = SeesTheDiskFirst()
    cloud.has_looked = True
    up(cloud)
    cloud.has_looked = False
    cloud.calls.clear()
    outcome = up(cloud)  # otherwise it would ask for consent, and `never` gives none
    assert outcome.plan.is_empty


class SeesThePublicIpFirst(FakeCloud):
    """Resources are listed one by one: Azure deletes a VM and what belongs to it between two of these requests."""

    is_deleting = False

    def observe(self, name: str, group: str | None = None, *, thorough: bool = False) -> Observed:
        found = super().observe(name, group, thorough=thorough)
        if not self.is_deleting:
            return found
        self.is_deleting = False
        for kind in (Kind.VM, Kind.NIC, Kind.PUBLIC_IP, Kind.DISK):
            self.remove(kind)
        gone = {Kind.VM, Kind.NIC, Kind.DISK}
        return replace(found, parts=tuple(part for part in found.parts if part.ref.kind not in gone))


def test_public_ip_that_is_being_deleted_with_its_machine_is_created_again() -> None:
    cloud = SeesThePublicIpFirst()
    up(cloud)
    cloud.is_deleting = True
    outcome = up(cloud)
    assert words(outcome.plan)[:3] == ["add public-ip", "add nic", "add vm"]
    assert cloud.kinds == list(Kind)


def test_second_up_writes_nothing_and_skips_the_preflight() -> None:
    cloud, market = FakeCloud(), FakeMarket()
    up(cloud, market=market)
    cloud.calls.clear()
    market.asked.clear()
    outcome = up(cloud, market=market)
    assert outcome.plan.is_empty
    assert (cloud.writes, market.asked, market.written) == ([], [], [])


def test_second_up_ignores_the_spelling_of_the_size() -> None:
    cloud, market = made(), FakeMarket()
    cloud.body(Kind.VM)["properties"]["hardwareProfile"]["vmSize"] = SMALL.lower()
    assert up(cloud, market=market).plan.is_empty
    assert market.asked == []


def test_deallocated_machine_is_started() -> None:
    cloud, market = made(), FakeMarket()
    cloud.set_power("deallocated")
    up(cloud, market=market)
    assert cloud.writes[-1] == "start vm my-dsvm"
    assert market.asked == []


def test_pending_operation_is_waited_for() -> None:
    cloud = made()
    cloud.body(Kind.VM)["properties"]["provisioningState"] = "Creating"

    def finish(call: str) -> None:
        if call == "look vm my-dsvm":
            cloud.body(Kind.VM)["properties"]["provisioningState"] = "Succeeded"

    cloud.on_call = finish
    assert up(cloud).plan.is_empty


def test_machine_that_the_spec_keeps_off_is_not_created() -> None:
    cloud, market = FakeCloud(), FakeMarket()
    outcome = up(cloud, spec(power="deallocated"), market)
    assert (outcome.observed, outcome.lease_until, outcome.plan.is_empty) == (None, None, True)
    assert (cloud.writes, market.asked) == ([], [])


def test_machine_is_deallocated_by_its_spec() -> None:
    cloud = made()
    up(cloud, spec(power="deallocated"))
    assert cloud.writes == ["deallocate vm my-dsvm"]


@pytest.mark.parametrize("fields", [{"sizes": (LARGE,)}, {"regions": ("westus2",)}], ids=str)
def test_machine_is_deallocated_whatever_else_changed(fields: dict[str, Any]) -> None:
    cloud = made()
    up(cloud, spec(power="deallocated", **fields), FakeMarket(limit=0))
    assert cloud.writes == ["deallocate vm my-dsvm"]


def test_subscription_is_prepared_before_the_first_write() -> None:
    cloud = FakeCloud()
    market = FakeMarket(missing_providers=("Microsoft.DevTestLab",), plan=ImagePlan("a", "payg", "c"))
    cloud.on_call = lambda call: market.written.append("first write") if call.startswith("put resource-group") else None
    up(cloud, spec(accept_image_terms=True), market)
    assert market.written == ["register Microsoft.DevTestLab", "accept payg", "first write"]
    assert cloud.body(Kind.VM)["plan"] == {"publisher": "a", "name": "payg", "product": "c"}


def test_planning_writes_nothing() -> None:
    cloud, market = FakeCloud(), FakeMarket(missing_providers=("Microsoft.DevTestLab",))
    plan = provisioner(cloud, spec(**TWO_REGIONS), market).plan()
    assert len(plan.changes) == 7
    assert (cloud.writes, market.written) == ([], [])


def test_refusal_while_planning_is_a_problem() -> None:
    cloud = FakeCloud()
    cloud.fail("observe", DENIED)
    with pytest.raises(Problem) as caught:
        provisioner(cloud).plan()
    assert caught.value.diagnostics[0].code is Code.NOT_ALLOWED


# Candidates


@pytest.mark.parametrize("error", [CAPACITY, QUOTA])
def test_next_region_is_tried_after_a_complete_cleanup(error: CloudError) -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", error)
    outcome = up(cloud, spec(**TWO_REGIONS))
    assert outcome.plan.candidate is not None
    assert outcome.plan.candidate.region == "westus2"
    assert [(str(each.candidate), each.reasons[0].code) for each in outcome.plan.rejected] == [
        (f"{SMALL} in eastus", error.code)
    ]
    first, second = [number for number, call in enumerate(cloud.calls) if call.startswith("put vm")]
    between = [call for call in cloud.calls[first:second] if call.startswith("delete ")]
    assert sorted(call.split()[1] for call in between) == ["nic", "nsg", "public-ip", "vnet"]
    assert {part.body["location"] for part in cloud.parts.values() if part.ref.kind is not Kind.RESOURCE_GROUP} == {
        "westus2"
    }
    assert planned(cloud, spec(regions=("westus2",))).notes == ()


def test_failed_machine_is_deleted_with_its_schedule() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", ALLOCATION)
    up(cloud, spec(**TWO_REGIONS))
    deleted = [call for call in cloud.writes if call.startswith("delete ")]
    assert deleted[0] == "delete vm my-dsvm"
    assert "delete shutdown-schedule shutdown-computevm-my-dsvm" in deleted
    seen = next(number for number, call in enumerate(cloud.calls) if call == "look vm my-dsvm")
    assert seen < max(number for number, call in enumerate(cloud.calls) if call == "put vm my-dsvm")
    assert cloud.body(Kind.VM)["location"] == "westus2"


def test_network_is_kept_for_the_next_size_in_the_region() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", CAPACITY)
    outcome = up(cloud, spec(**TWO_SIZES))
    assert outcome.plan.candidate is not None
    assert outcome.plan.candidate.size == LARGE
    assert not [call for call in cloud.writes if call.startswith("delete ")]
    assert len([call for call in cloud.writes if call.startswith("put vnet")]) == 1


def test_failed_machine_is_deleted_before_the_next_size() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", ALLOCATION)
    up(cloud, spec(**TWO_SIZES))
    assert next(call.split()[1] for call in cloud.writes if call.startswith("delete ")) == "vm"
    assert cloud.kinds == list(Kind)
    assert cloud.body(Kind.VM)["properties"]["hardwareProfile"] == {"vmSize": LARGE}


@pytest.mark.parametrize("fields", [{}, TWO_REGIONS, TWO_SIZES, {**TWO_REGIONS, **TWO_SIZES}], ids=str)
@pytest.mark.parametrize("operation", [False, True])
def test_nothing_is_left_when_all_candidates_fail(fields: dict[str, Any], operation: bool) -> None:
    cloud, wanted = FakeCloud(), spec(**fields)
    count = len(wanted.regions) * len(wanted.candidate_sizes)
    for _ in range(count):
        if operation:
            cloud.fail_operation("put vm", ALLOCATION)
        else:
            cloud.fail("put vm", CAPACITY)
    (found,) = problem(provisioner(cloud, wanted))
    assert found.code is Code.NO_CANDIDATE
    assert (found.note or "").count("AllocationFailed" if operation else "SkuNotAvailable") == count
    assert cloud.parts == {}


def test_preflight_reasons_are_listed_with_failures() -> None:
    cloud, market = FakeCloud(), FakeMarket(limit=4)
    cloud.fail("put vm", CAPACITY)
    (found,) = problem(provisioner(cloud, spec(**TWO_SIZES), market))
    assert "SkuNotAvailable" in (found.note or "")
    assert f"needs 8 vCPUs of {FakeMarket().catalogue('eastus').offers[LARGE].family}" in (found.note or "")


def test_foreign_group_survives_a_failure() -> None:
    cloud = FakeCloud()
    cloud.add(Kind.RESOURCE_GROUP, {"tags": {"owner": "alice"}})
    cloud.add(Kind.PUBLIC_IP, {"tags": {"owner": "alice"}}, name="theirs")
    cloud.fail("put vm", CAPACITY)
    problem(provisioner(cloud))
    assert cloud.kinds == [Kind.RESOURCE_GROUP, Kind.PUBLIC_IP]


def test_group_with_a_new_foreign_resource_survives_a_failure() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", DENIED)

    def add(call: str) -> None:
        if call.startswith("put vm"):
            cloud.add(Kind.DISK, {"tags": {}}, name="theirs")

    cloud.on_call = add
    problem(provisioner(cloud))
    assert cloud.kinds == [Kind.RESOURCE_GROUP, Kind.DISK]


# Rollback


def test_other_refusals_are_rolled_back() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", DENIED)
    (found,) = problem(provisioner(cloud, spec(**TWO_REGIONS)))
    assert found.code is Code.NOT_ALLOWED
    assert (found.note or "").startswith("vm my-dsvm: AuthorizationFailed: you may not")
    assert "what this run had created was deleted again" in (found.note or "")
    assert cloud.parts == {}


def test_existing_resources_are_not_rolled_back() -> None:
    cloud = made()
    for kind in (Kind.VM, Kind.DISK, Kind.NIC, Kind.SHUTDOWN_SCHEDULE):
        cloud.remove(kind)
    cloud.fail("put vm", DENIED)
    problem(provisioner(cloud))
    assert cloud.kinds == [Kind.RESOURCE_GROUP, Kind.NSG, Kind.VNET, Kind.PUBLIC_IP]


NO_RIGHT = AgentRole(RoleState.REFUSED, "AuthorizationFailed", "no")
POLICY = CloudError(Fault.POLICY, "RequestDisallowedByPolicy", "Resource was disallowed by policy.")
NOT_HERE = CloudError(Fault.OTHER, "LocationNotAvailableForResourceType", "not available", status=400)


@pytest.mark.parametrize("error", [DENIED, POLICY, NOT_HERE])
def test_machine_is_deleted_when_neither_schedule_nor_agent_can_end_it(error: CloudError) -> None:
    cloud = FakeCloud(rights=[NO_RIGHT])
    cloud.fail("put shutdown-schedule", error, times=-1)
    problem(provisioner(cloud))
    assert cloud.parts == {}


@pytest.mark.parametrize("error", [DENIED, POLICY, NOT_HERE])
def test_machine_is_kept_without_its_schedule_when_its_agent_can_end_it(error: CloudError) -> None:
    cloud = FakeCloud()
    cloud.fail("put shutdown-schedule", error, times=-1)
    work = provisioner(cloud)
    found = work.up(never)
    assert found.agent
    assert found.agent.is_held
    assert cloud.kinds == [kind for kind in Kind if kind is not Kind.SHUTDOWN_SCHEDULE]
    assert f"warning: Azure's daily schedule is refused ({error.code})" in "\n".join(lines_of(work.task))


def test_temporary_refusal_of_the_schedule_fails_up() -> None:
    cloud = FakeCloud()
    cloud.fail("put shutdown-schedule", CloudError(Fault.LOCKED, "ScopeLocked", "locked"), times=-1)
    problem(provisioner(cloud))
    assert cloud.parts == {}


ELSEWHERE = frozenset({"westeurope"})


def test_region_without_schedules_is_in_the_plan_and_is_used() -> None:
    cloud, market = FakeCloud(), FakeMarket(scheduled=ELSEWHERE)
    work = provisioner(cloud, market=market)
    plan = work.plan()
    assert plan.needs_agent
    assert Kind.SHUTDOWN_SCHEDULE not in {change.ref.kind for change in plan.changes}
    assert any("does not offer Azure's daily schedule" in note for note in plan.notes)
    assert up(cloud, market=market).agent
    assert not [call for call in cloud.calls if "shutdown-schedule" in call and call.startswith("put")]
    # The second time there is nothing to do.
    assert up(cloud, market=market).plan.is_empty


def test_region_without_schedules_needs_an_agent_that_may_end_the_machine() -> None:
    cloud = FakeCloud(rights=[NO_RIGHT])
    (found, *_) = problem(provisioner(cloud, market=FakeMarket(scheduled=ELSEWHERE)))
    assert "the region offers no daily schedule" in (found.note or "")
    assert cloud.parts == {}


def test_failed_rollback_is_reported_with_its_cause() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", ALLOCATION)
    cloud.fail("delete vm", DENIED, times=-1)
    cause, left = problem(provisioner(cloud), Exit.LEFT_BEHIND)
    assert (cause.code, left.code) == (Code.NO_CAPACITY, Code.NOT_ALLOWED)
    assert "deleting vm my-dsvm after AllocationFailed" in (left.note or "")
    assert "vm my-dsvm is off; what remains may be billed" in (left.note or "")
    assert "deallocate vm my-dsvm" in cloud.calls


def test_rollback_keeps_resources_that_another_up_uses() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", ALLOCATION)
    in_use = CloudError(Fault.IN_USE, "InUseNetworkSecurityGroupCannotBeDeleted", "an interface uses it")
    cloud.fail("delete nsg", in_use, times=-1)
    (found,) = problem(provisioner(cloud))
    assert found.code is Code.NO_CANDIDATE
    assert cloud.kinds == [Kind.RESOURCE_GROUP, Kind.NSG]


def test_rollback_waits_for_a_lost_connection() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", DENIED)
    cloud.fail("observe", UNREACHABLE, skip=1, times=10)
    problem(provisioner(cloud))
    assert cloud.parts == {}


def test_rollback_that_cannot_look_switches_the_machine_off() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", DENIED)
    cloud.fail("observe", UNREACHABLE, skip=1, times=-1)
    cause, left = problem(provisioner(cloud), Exit.LEFT_BEHIND)
    assert (cause.code, left.code) == (Code.NOT_ALLOWED, Code.UNREACHABLE)
    assert "deleting my-dsvm after AuthorizationFailed" in (left.note or "")
    assert "vm my-dsvm is off; what remains may be billed" in (left.note or "")
    assert "deallocate vm my-dsvm" in cloud.calls


def test_rollback_without_a_connection_reports_possible_billing() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", DENIED)
    for call in ("observe", "look"):
        cloud.fail(call, UNREACHABLE, skip=1 if call == "observe" else 0, times=-1)
    cause, left = problem(provisioner(cloud), Exit.LEFT_BEHIND)
    assert (cause.code, left.code) == (Code.NOT_ALLOWED, Code.UNREACHABLE)
    assert "it may be billed" in (left.note or "")


def test_rollback_continues_after_the_deadline() -> None:
    cloud = FakeCloud()
    work = provisioner(cloud)

    def late(call: str) -> None:
        if call.startswith("wait vm") and Kind.VM in cloud.kinds:
            cloud.time.seconds += 4000

    cloud.on_call = late
    cloud.fail("wait vm", CloudError(Fault.TIMEOUT, "Timeout", "too late"))
    assert problem(work)[0].code is Code.TIMED_OUT
    assert cloud.parts == {}


def test_machine_with_a_lost_response_is_rolled_back() -> None:
    cloud = FakeCloud(rights=[NO_RIGHT])
    cloud.fail("put vm", UNREACHABLE, done=True)
    cloud.fail("put shutdown-schedule", DENIED, times=-1)
    problem(provisioner(cloud))
    assert cloud.parts == {}


# Existing machines


@pytest.mark.parametrize("error", [CAPACITY, DENIED])
def test_machine_that_cannot_be_started_is_kept(error: CloudError) -> None:
    cloud = made()
    cloud.set_power("deallocated")
    cloud.fail("start", error)
    (found,) = problem(provisioner(cloud, spec(**TWO_REGIONS)))
    assert "my-dsvm is kept" in (found.note or "")
    assert cloud.kinds == list(Kind)
    assert not [call for call in cloud.writes if call.startswith("delete ")]


def test_ready_machine_is_marked_once() -> None:
    cloud = FakeCloud()
    up(cloud)
    assert tags.moment(cloud.body(Kind.PUBLIC_IP)["tags"], tags.READY) == NOW
    assert cloud.writes[-1] == "patch public-ip my-dsvm-ip"
    cloud.calls.clear()
    up(cloud)
    assert cloud.writes == []


def test_failed_ready_mark_is_not_an_error() -> None:
    cloud = FakeCloud()
    cloud.fail("patch public-ip", DENIED)
    assert up(cloud).observed is not None
    up(cloud)
    assert tags.READY in cloud.body(Kind.PUBLIC_IP)["tags"]


@pytest.mark.parametrize(
    "marked",
    [True, False],
)
def test_machine_whose_start_failed_is_not_recreated(marked: bool) -> None:
    cloud = made()
    if not marked:  # the run that created it was killed before it could set the mark
        del cloud.body(Kind.PUBLIC_IP)["tags"][tags.READY]
    cloud.set_power("deallocated")
    cloud.fail_operation("start", ALLOCATION)
    problem(provisioner(cloud))
    assert cloud.body(Kind.VM)["properties"]["provisioningState"] == "Failed"
    up(cloud)
    assert not [call for call in cloud.writes if call.startswith("delete ")]


def test_machine_without_its_address_is_not_recreated_when_its_start_fails() -> None:
    cloud = made()
    cloud.remove(Kind.PUBLIC_IP)  # manually, and with it the mark that the creation succeeded
    cloud.set_power("deallocated")
    cloud.fail_operation("start", ALLOCATION)
    problem(provisioner(cloud))
    up(cloud)
    assert not [call for call in cloud.writes if call.startswith("delete ")]


def test_machine_that_lost_its_address_while_it_had_failed_is_not_replaced() -> None:
    cloud = made()
    cloud.set_power("deallocated")
    cloud.fail_operation("start", ALLOCATION)
    problem(provisioner(cloud))
    cloud.remove(Kind.PUBLIC_IP)  # by hand, and with it the mark that the machine was ready
    cloud.fail_operation("start", ALLOCATION)
    problem(provisioner(cloud))
    up(cloud)
    assert not [call for call in cloud.writes if call.startswith("delete ")]


def test_failed_machine_with_a_disk_is_replaced_only_with_consent() -> None:
    cloud, asked = made(), list[list[str]]()
    del cloud.body(Kind.PUBLIC_IP)["tags"][tags.READY]  # anyone who can write tags can remove it
    cloud.body(Kind.VM)["properties"]["provisioningState"] = "Failed"
    up(cloud, consent=ask(asked))
    assert asked == [["replace public-ip", "replace nic", "replace vm loses"]]


def test_failed_machine_with_a_swapped_disk_is_not_replaced() -> None:
    cloud = made()
    disk = f"/subscriptions/{cloud.subscription}/resourceGroups/{GROUP}/providers/Microsoft.Compute/disks/restored"
    cloud.body(Kind.VM)["properties"]["storageProfile"]["osDisk"]["managedDisk"]["id"] = disk
    cloud.body(Kind.VM)["properties"]["provisioningState"] = "Failed"
    cloud.remove(Kind.DISK)
    up(cloud)
    assert not [call for call in cloud.writes if call.startswith("delete ")]


def test_machine_that_cannot_be_changed_is_kept() -> None:
    cloud = made()
    cloud.fail("patch vm", QUOTA)
    (found,) = problem(provisioner(cloud, spec(sizes=(LARGE,))))
    assert found.code is Code.NO_QUOTA
    assert cloud.kinds == list(Kind)


def test_unavailable_size_is_reported_before_the_machine_is_deallocated() -> None:
    cloud = made()
    (found,) = problem(provisioner(cloud, spec(sizes=(LARGE,)), FakeMarket(limit=4, used=4)))
    assert found.code is Code.NO_CANDIDATE
    assert cloud.writes == []


def test_vcpus_of_the_existing_machine_count_as_free() -> None:
    cloud = made()
    up(cloud, spec(sizes=(LARGE,)), FakeMarket(limit=8, used=4))
    assert cloud.body(Kind.VM)["properties"]["hardwareProfile"] == {"vmSize": LARGE}


# Consent


def ask(asked: list[list[str]]) -> Any:
    return lambda plan: asked.append(words(plan))


def test_consent_is_requested_before_a_replacement() -> None:
    cloud, asked = made(), list[list[str]]()

    def consent(plan: Plan) -> None:
        assert cloud.writes == []
        asked.append(words(plan))

    up(cloud, spec(image="dsvm-ubuntu-20.04"), consent=consent)
    assert asked == [["replace public-ip", "replace nic", "replace vm loses"]]
    assert cloud.kinds == list(Kind)


@pytest.mark.parametrize("is_alone", [False, True])
def test_machine_that_another_creates_while_consent_is_asked_is_not_deleted(is_alone: bool) -> None:
    cloud = made()
    if is_alone:
        cloud.remove(Kind.VM)  # only its disk is left
    work = provisioner(cloud, spec(image="dsvm-ubuntu-20.04"))

    def consent(plan: Plan) -> None:
        assert plan.loses
        add_machine_of_another(cloud)

    with pytest.raises(Problem) as caught:
        work.up(consent)
    assert caught.value.diagnostics[0].code is Code.NAME_TAKEN
    assert cloud.writes == []


def test_consent_is_requested_before_a_leftover_disk_is_deleted() -> None:
    cloud, asked = made(), list[list[str]]()
    cloud.remove(Kind.VM)
    up(cloud, consent=ask(asked))
    assert asked == [["destroy disk loses", "add vm"]]


def test_consent_is_requested_once_for_all_candidates() -> None:
    cloud, asked = made(), list[list[str]]()
    cloud.fail("put vm", CAPACITY)
    up(cloud, spec(regions=("westus2", "westus")), consent=ask(asked))
    assert len(asked) == 1
    assert cloud.body(Kind.VM)["location"] == "westus"


@pytest.mark.parametrize(
    "fields",
    [{"sizes": (LARGE,)}, {"disk": {"size_gib": 200}}, {"tags": {"a": "b"}}, {"power": "deallocated"}],
    ids=str,
)
def test_no_consent_is_requested_when_nothing_is_lost(fields: dict[str, Any]) -> None:
    cloud = made()
    up(cloud, spec(**fields))
    assert cloud.writes


def test_machine_whose_creation_failed_is_replaced_without_consent() -> None:
    cloud = made()
    cloud.body(Kind.VM)["properties"]["provisioningState"] = "Failed"
    cloud.remove(Kind.DISK)
    up(cloud)
    assert cloud.writes[0] == "delete vm my-dsvm"
    assert cloud.kinds == list(Kind)


def test_without_consent_nothing_is_written() -> None:
    cloud, market = made(), FakeMarket(missing_providers=("Microsoft.DevTestLab",))

    def refuse(plan: Plan) -> None:
        raise Problem(Diagnostic(Code.NEEDS_CONSENT, "no"), exit_code=Exit.USAGE)

    with pytest.raises(Problem) as caught:
        up(cloud, spec(image="dsvm-ubuntu-20.04"), market, refuse)
    assert caught.value.diagnostics[0].code is Code.NEEDS_CONSENT
    assert (cloud.writes, market.written) == ([], [])


def test_unavailable_replacement_is_reported_before_anything_is_lost() -> None:
    cloud = made()
    (found,) = problem(provisioner(cloud, spec(regions=("westus2",)), FakeMarket(limit=0)))
    assert found.code is Code.NO_CANDIDATE
    assert cloud.writes == []


def test_replacement_stays_in_the_region() -> None:
    wanted = spec(regions=("westus2", "eastus"), image="dsvm-ubuntu-20.04")
    cloud = made()
    up(cloud, wanted, consent=lambda _: None)
    assert cloud.body(Kind.VM)["location"] == "eastus"


def test_replaced_machine_gets_a_new_lease() -> None:
    cloud = made()
    cloud.moment = NOW + timedelta(hours=3, minutes=50)
    up(cloud, spec(image="dsvm-ubuntu-20.04"), consent=lambda _: None)
    found = cloud.body(Kind.VM)["tags"]
    assert tags.moment(found, tags.ON_SINCE) == cloud.moment
    assert tags.moment(found, tags.LEASE_UNTIL) == cloud.moment + timedelta(hours=4)


# Cost cap


CAPPED: dict[str, Any] = {"lifecycle": {"max_cost": parse_money("1 USD")}}


@dataclass
class Priced(FakeMarket):
    """A market with a price for what is in it."""

    per_hour: float = 0.5

    def price(self, size: str, region: str, spot: bool = False) -> float | None:
        return self.per_hour

    def prices(self, sizes: Iterable[str]) -> Prices:
        return Prices({(size, "eastus"): Rate(self.per_hour, None) for size in sizes})


def test_cost_cap_limits_the_first_lease() -> None:
    cloud = FakeCloud()
    assert up(cloud, spec(**CAPPED), Priced()).lease_until == NOW + timedelta(hours=2)
    assert cloud.body(Kind.VM)["tags"][tags.TERMS] == "lease=4h idle=20m cap=2h"
    assert cloud.body(Kind.SHUTDOWN_SCHEDULE)["properties"]["dailyRecurrence"]["time"] == "1035"


@dataclass
class Unpriced(FakeMarket):
    """A market whose price service does not answer."""

    def price(self, size: str, region: str, spot: bool = False) -> float | None:
        return None


@pytest.mark.parametrize(
    ("priority", "terms", "price"),
    [("regular", "lease=4h idle=20m cap=1h54m", (0.526, "2026-06")), ("spot", "lease=4h idle=20m", (None, None))],
)
def test_cost_cap_uses_the_shipped_price_list(
    priority: str, terms: str, price: tuple[float | None, str | None]
) -> None:
    cloud = FakeCloud()
    plan = up(cloud, spec(priority=priority, **CAPPED), Unpriced()).plan
    assert cloud.body(Kind.VM)["tags"][tags.TERMS] == terms
    assert (plan.price.per_hour, plan.price.list_of) == price


def test_price_change_does_not_affect_a_running_machine() -> None:
    cloud = FakeCloud()
    up(cloud, spec(**CAPPED), Priced())
    assert up(cloud, spec(**CAPPED), Priced(per_hour=1.0)).plan.is_empty
    cloud.set_power("deallocated")
    assert up(cloud, spec(**CAPPED), Priced(per_hour=1.0)).lease_until == NOW + timedelta(hours=1)


def test_edited_terms_are_restored() -> None:
    cloud = FakeCloud()
    up(cloud, spec(**CAPPED), Priced())
    for written in ("lease=9h idle=20m cap=2h", "lease=4h idle=20m", "for ever"):
        cloud.body(Kind.VM)["tags"][tags.TERMS] = written
        up(cloud, spec(**CAPPED), Priced())
        assert cloud.body(Kind.VM)["tags"][tags.TERMS] == "lease=4h idle=20m cap=2h"


def test_replaced_machine_gets_its_full_cost_cap() -> None:
    cloud = FakeCloud()
    up(cloud, spec(**CAPPED), Priced())
    cloud.moment = NOW + timedelta(minutes=90)
    up(cloud, spec(image="dsvm-ubuntu-20.04", **CAPPED), Priced(), consent=lambda _: None)
    assert tags.moment(cloud.body(Kind.VM)["tags"], tags.LEASE_UNTIL) == cloud.moment + timedelta(hours=2)


def test_machine_replaced_by_the_same_spec_has_the_current_price() -> None:
    cloud = FakeCloud()
    up(cloud, spec(**CAPPED), Priced())
    cloud.body(Kind.DISK)["properties"]["diskSizeGB"] = 300  # manually, and a disk does not shrink
    up(cloud, spec(**CAPPED), Priced(per_hour=1.0), consent=lambda _: None)
    assert cloud.body(Kind.VM)["tags"][tags.TERMS] == "lease=4h idle=20m cap=1h"


# Other clients


def test_foreign_resource_stops_up_before_the_first_write() -> None:
    cloud = FakeCloud()
    cloud.add(Kind.VNET, {"tags": {"owner": "alice"}, "properties": {}})
    (found,) = problem(provisioner(cloud))
    assert found.code is Code.NAME_TAKEN
    assert cloud.writes == []


def test_machine_created_by_another_up_meanwhile_is_followed() -> None:
    cloud, other = FakeCloud(), made()

    def quicker(call: str) -> None:
        if call.startswith("put vm") and Kind.VM not in cloud.kinds:
            other.body(Kind.VM)["tags"]["gpuinfra:host-key"] = "ssh-ed25519 AAAAanother"
            cloud.add(Kind.VM, other.body(Kind.VM))
            cloud.add(Kind.DISK, other.body(Kind.DISK))

    cloud.on_call = quicker
    work = provisioner(cloud)
    work.up(never)
    assert "vm my-dsvm is already being created; waiting for it" in lines_of(work.task)
    assert provisioner(cloud).plan().is_empty


def add_machine_of_another(cloud: FakeCloud, *, state: str = "Succeeded", **place: Any) -> None:
    """What another `up` of the same spec creates, by its own host key."""
    other = made(**place)
    other.body(Kind.VM)["tags"][tags.HOST_KEY] = "ssh-ed25519 AAAAanother"
    other.body(Kind.VM)["properties"]["provisioningState"] = state
    for kind in (Kind.PUBLIC_IP, Kind.NIC, Kind.VM, Kind.DISK):
        cloud.add(kind, other.body(kind))


def test_machine_that_another_created_between_two_candidates_is_replaced_only_with_consent() -> None:
    cloud, asked, found = FakeCloud(), list[list[str]](), list[str]()
    cloud.fail("put vm", CAPACITY)
    work = provisioner(cloud, spec(**TWO_REGIONS))
    hooks = UpHooks(check_found=lambda machine: found.append(machine.host_key))

    def quicker(call: str) -> None:
        if call.startswith("observe") and any(each.startswith("delete ") for each in cloud.calls):
            cloud.on_call = lambda _: None
            add_machine_of_another(cloud)

    cloud.on_call = quicker
    with pytest.raises(Problem):
        work.up(_refuse_loss(asked), hooks)
    assert found == ["ssh-ed25519 AAAAanother"]
    assert "replace vm loses" in asked[-1]
    assert Kind.VM in cloud.kinds


def _refuse_loss(asked: list[list[str]]) -> Any:
    def consent(plan: Plan) -> None:
        asked.append(words(plan))
        if plan.loses:
            raise Problem(Diagnostic(Code.NEEDS_CONSENT, "no"), exit_code=Exit.USAGE)

    return consent


@pytest.mark.parametrize("state", ["Failed", "Succeeded"])
def test_rollback_leaves_a_machine_that_another_created_meanwhile(state: str) -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", DENIED)

    def quicker(call: str) -> None:
        if call.startswith("put vm"):
            add_machine_of_another(cloud, state=state)
            if state == "Failed":
                cloud.parts.pop((Kind.DISK, GROUP, f"{NAME}-disk"))

    cloud.on_call = quicker
    (found,) = problem(provisioner(cloud))
    assert "nothing was deleted: vm my-dsvm exists, and this run did not create it" in (found.note or "")
    assert {Kind.VM, Kind.NIC, Kind.PUBLIC_IP} <= set(cloud.kinds)
    assert not [call for call in cloud.writes if call.startswith("delete ")]


def test_rollback_leaves_a_machine_that_took_the_place_of_its_own() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", DENIED)

    def quicker(call: str) -> None:
        if call.startswith("wait vm"):
            cloud.on_call = lambda _: None
            add_machine_of_another(cloud)

    cloud.on_call = quicker
    problem(provisioner(cloud))
    assert cloud.body(Kind.VM)["tags"][tags.HOST_KEY] == "ssh-ed25519 AAAAanother"
    assert not [call for call in cloud.writes if call.startswith("delete ")]


def test_machine_whose_deletion_is_refused_is_not_called_gone() -> None:
    cloud = made()
    cloud.body(Kind.VM)["tags"][tags.HOST_KEY] = "ssh-ed25519 AAAAearlier"
    cloud.fail("delete vm", DENIED, times=-1)
    with pytest.raises(Problem) as caught:
        up(cloud, spec(image="dsvm-ubuntu-20.04"), consent=lambda _: None)
    note = caught.value.diagnostics[0].note or ""
    assert "nothing was deleted: vm my-dsvm exists" in note
    assert "is gone" not in note
    assert cloud.kinds == list(Kind)


def test_rollback_deletes_a_machine_of_this_run_whose_answer_never_came() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", DENIED, done=True)
    problem(provisioner(cloud))
    assert cloud.parts == {}


def test_skipped_candidates_are_reported() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", CAPACITY)
    work = provisioner(cloud, spec(**TWO_REGIONS))
    work.up(never)
    assert f"{SMALL} in eastus is passed over: SkuNotAvailable" in lines_of(work.task)
    assert cloud.observe(NAME).group == GROUP
