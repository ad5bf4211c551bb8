"""A machine on its way up: one candidate after the other, nothing left behind, nothing lost without consent."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Diagnostic, Exit, Problem
from gpuinfra.models.money import parse_money
from gpuinfra.models.offer import Rate
from gpuinfra.models.plan import Plan
from gpuinfra.models.resource import Kind
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Observed
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market.port import ImagePlan, Prices
from gpuinfra.provision.up import Provisioner, Up
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
    Heard,
    Shop,
    bringing,
    made,
    planned,
    spec,
    words,
)

TWO_REGIONS: dict[str, Any] = {"regions": ("eastus", "westus2")}
TWO_SIZES: dict[str, Any] = {"sizes": (SMALL, LARGE)}
QUOTA = CloudError(Fault.QUOTA, "OperationNotAllowed", "exceeding approved quota")


def never(plan: Plan) -> None:
    assert not plan.loses, f"nothing is lost by {words(plan)}"


def up(cloud: FakeCloud, wanted: Spec | None = None, market: Shop | None = None, consent: Any = never) -> Up:
    return bringing(cloud, wanted, market).up(consent)


def problem(work: Provisioner, exit_code: Exit = Exit.FAILED) -> tuple[Diagnostic, ...]:
    with pytest.raises(Problem) as caught:
        work.up(never)
    assert caught.value.exit_code is exit_code
    return caught.value.diagnostics


# Success


def test_a_fresh_machine() -> None:
    cloud = FakeCloud()
    outcome = up(cloud)
    assert cloud.kinds == list(Kind)
    assert outcome.observed is not None
    assert outcome.observed.part(Kind.VM)
    assert outcome.lease_until == NOW + timedelta(hours=4)
    assert len(outcome.plan.changes) == 7
    assert outcome.plan.passed == ()
    assert outcome.plan.price.residue_per_month == pytest.approx(22.85)


class SeesTheDiskFirst(FakeCloud):
    """Parts are seen one by one: another run makes the machine between the look for it and that for its disk."""

    has_looked = False

    def observe(self, name: str, group: str | None = None, *, thorough: bool = False) -> Observed:
        found = super().observe(name, group, thorough=thorough)
        if self.has_looked:
            return found
        self.has_looked = True
        return replace(found, parts=tuple(part for part in found.parts if part.ref.kind is not Kind.VM))


def test_a_disk_whose_machine_is_just_being_made_is_no_leftover() -> None:
    cloud = SeesTheDiskFirst()
    cloud.has_looked = True
    up(cloud)
    cloud.has_looked = False
    cloud.calls.clear()
    outcome = up(cloud)  # it would ask for consent, and `never` gives none
    assert outcome.plan.is_empty


def test_the_second_time_writes_nothing_and_asks_no_market() -> None:
    cloud, market = FakeCloud(), Shop()
    up(cloud, market=market)
    cloud.calls.clear()
    market.asked.clear()
    outcome = up(cloud, market=market)
    assert outcome.plan.is_empty
    assert (cloud.writes, market.asked, market.written) == ([], [], [])


def test_the_second_time_asks_no_market_however_azure_spells_the_size() -> None:
    cloud, market = made(), Shop()
    cloud.body(Kind.VM)["properties"]["hardwareProfile"]["vmSize"] = SMALL.lower()
    assert up(cloud, market=market).plan.is_empty
    assert market.asked == []


def test_a_machine_that_is_off_is_started_and_not_rebuilt() -> None:
    cloud, market = made(), Shop()
    cloud.set_power("deallocated")
    up(cloud, market=market)
    assert cloud.writes[-1] == "start vm my-dsvm"
    assert market.asked == []


def test_what_was_under_way_is_waited_for_first() -> None:
    cloud = made()
    cloud.body(Kind.VM)["properties"]["provisioningState"] = "Creating"

    def finish(call: str) -> None:
        if call == "look vm my-dsvm":
            cloud.body(Kind.VM)["properties"]["provisioningState"] = "Succeeded"

    cloud.on_call = finish
    assert up(cloud).plan.is_empty


def test_no_machine_that_is_to_be_off_is_none() -> None:
    cloud, market = FakeCloud(), Shop()
    outcome = up(cloud, spec(power="deallocated"), market)
    assert (outcome.observed, outcome.lease_until, outcome.plan.is_empty) == (None, None, True)
    assert (cloud.writes, market.asked) == ([], [])


def test_a_machine_is_switched_off_by_its_spec() -> None:
    cloud = made()
    up(cloud, spec(power="deallocated"))
    assert cloud.writes == ["deallocate vm my-dsvm"]


@pytest.mark.parametrize("fields", [{"sizes": (LARGE,)}, {"regions": ("westus2",)}], ids=str)
def test_a_machine_is_switched_off_whatever_else_its_spec_asks_for(fields: dict[str, Any]) -> None:
    cloud = made()
    up(cloud, spec(power="deallocated", **fields), Shop(limit=0))
    assert cloud.writes == ["deallocate vm my-dsvm"]


def test_the_subscription_is_prepared_before_the_first_write() -> None:
    cloud = FakeCloud()
    market = Shop(missing_providers=("Microsoft.DevTestLab",), plan=ImagePlan("a", "payg", "c"))
    cloud.on_call = lambda call: market.written.append("first write") if call.startswith("put resource-group") else None
    up(cloud, spec(accept_image_terms=True), market)
    assert market.written == ["register Microsoft.DevTestLab", "accept payg", "first write"]
    assert cloud.body(Kind.VM)["plan"] == {"publisher": "a", "name": "payg", "product": "c"}


def test_planning_writes_nothing() -> None:
    cloud, market = FakeCloud(), Shop(missing_providers=("Microsoft.DevTestLab",))
    plan = bringing(cloud, spec(**TWO_REGIONS), market).plan()
    assert len(plan.changes) == 7
    assert (cloud.writes, market.written) == ([], [])


def test_a_refusal_while_planning_is_a_problem() -> None:
    cloud = FakeCloud()
    cloud.fail("observe", DENIED)
    with pytest.raises(Problem) as caught:
        bringing(cloud).plan()
    assert caught.value.diagnostics[0].code is Code.NOT_ALLOWED


# One candidate after the other


@pytest.mark.parametrize("error", [CAPACITY, QUOTA])
def test_another_region_is_tried_once_nothing_is_left_of_the_first(error: CloudError) -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", error)
    outcome = up(cloud, spec(**TWO_REGIONS))
    assert outcome.plan.candidate is not None
    assert outcome.plan.candidate.region == "westus2"
    assert [(str(each.candidate), each.reasons[0].code) for each in outcome.plan.passed] == [
        (f"{SMALL} in eastus", error.code)
    ]
    first, second = [number for number, call in enumerate(cloud.calls) if call.startswith("put vm")]
    between = [call for call in cloud.calls[first:second] if call.startswith("delete ")]
    assert sorted(call.split()[1] for call in between) == ["nic", "nsg", "public-ip", "vnet"]
    assert {part.body["location"] for part in cloud.parts.values() if part.ref.kind is not Kind.RESOURCE_GROUP} == {
        "westus2"
    }
    assert planned(cloud, spec(regions=("westus2",))).notes == ()


def test_a_machine_that_failed_after_it_was_accepted_goes_with_its_daily_stop() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", ALLOCATION)
    up(cloud, spec(**TWO_REGIONS))
    deleted = [call for call in cloud.writes if call.startswith("delete ")]
    assert deleted[0] == "delete vm my-dsvm"
    assert "delete shutdown-schedule shutdown-computevm-my-dsvm" in deleted
    seen = next(number for number, call in enumerate(cloud.calls) if call == "look vm my-dsvm")
    assert seen < max(number for number, call in enumerate(cloud.calls) if call == "put vm my-dsvm")
    assert cloud.body(Kind.VM)["location"] == "westus2"


def test_in_the_same_region_the_network_is_kept_for_the_next() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", CAPACITY)
    outcome = up(cloud, spec(**TWO_SIZES))
    assert outcome.plan.candidate is not None
    assert outcome.plan.candidate.size == LARGE
    assert not [call for call in cloud.writes if call.startswith("delete ")]
    assert len([call for call in cloud.writes if call.startswith("put vnet")]) == 1


def test_a_failed_machine_in_the_same_region_goes_before_the_next() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", ALLOCATION)
    up(cloud, spec(**TWO_SIZES))
    assert next(call.split()[1] for call in cloud.writes if call.startswith("delete ")) == "vm"
    assert cloud.kinds == list(Kind)
    assert cloud.body(Kind.VM)["properties"]["hardwareProfile"] == {"vmSize": LARGE}


@pytest.mark.parametrize("fields", [{}, TWO_REGIONS, TWO_SIZES, {**TWO_REGIONS, **TWO_SIZES}], ids=str)
@pytest.mark.parametrize("operation", [False, True])
def test_when_none_can_be_had_nothing_is_left(fields: dict[str, Any], operation: bool) -> None:
    cloud, wanted = FakeCloud(), spec(**fields)
    count = len(wanted.regions) * len(wanted.candidate_sizes)
    for _ in range(count):
        if operation:
            cloud.fail_operation("put vm", ALLOCATION)
        else:
            cloud.fail("put vm", CAPACITY)
    (found,) = problem(bringing(cloud, wanted))
    assert found.code is Code.NO_CANDIDATE
    assert (found.note or "").count("AllocationFailed" if operation else "SkuNotAvailable") == count
    assert cloud.parts == {}


def test_what_was_refused_before_is_told_beside_what_failed() -> None:
    cloud, market = FakeCloud(), Shop(limit=4)
    cloud.fail("put vm", CAPACITY)
    (found,) = problem(bringing(cloud, spec(**TWO_SIZES), market))
    assert "SkuNotAvailable" in (found.note or "")
    assert f"needs 8 vCPUs of {Shop().catalogue('eastus').offers[LARGE].family}" in (found.note or "")


def test_a_group_of_somebody_else_outlives_a_failure_with_all_that_is_in_it() -> None:
    cloud = FakeCloud()
    cloud.add(Kind.RESOURCE_GROUP, {"tags": {"owner": "somebody"}})
    cloud.add(Kind.PUBLIC_IP, {"tags": {"owner": "somebody"}}, name="theirs")
    cloud.fail("put vm", CAPACITY)
    problem(bringing(cloud))
    assert cloud.kinds == [Kind.RESOURCE_GROUP, Kind.PUBLIC_IP]


def test_a_group_that_somebody_has_put_something_into_meanwhile_stays() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", DENIED)

    def add(call: str) -> None:
        if call.startswith("put vm"):
            cloud.add(Kind.DISK, {"tags": {}}, name="theirs")

    cloud.on_call = add
    problem(bringing(cloud))
    assert cloud.kinds == [Kind.RESOURCE_GROUP, Kind.DISK]


# Undoing


def test_any_other_refusal_is_undone_and_raised() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", DENIED)
    (found,) = problem(bringing(cloud, spec(**TWO_REGIONS)))
    assert found.code is Code.NOT_ALLOWED
    assert (found.note or "").startswith("vm my-dsvm: AuthorizationFailed: you may not")
    assert "what this run had created was deleted again" in (found.note or "")
    assert cloud.parts == {}


def test_what_was_there_before_is_not_undone() -> None:
    cloud = made()
    for kind in (Kind.VM, Kind.DISK, Kind.NIC, Kind.SHUTDOWN_SCHEDULE):
        cloud.remove(kind)
    cloud.fail("put vm", DENIED)
    problem(bringing(cloud))
    assert cloud.kinds == [Kind.RESOURCE_GROUP, Kind.NSG, Kind.VNET, Kind.PUBLIC_IP]


def test_a_machine_that_could_not_be_given_an_end_does_not_stay() -> None:
    cloud = FakeCloud()
    cloud.fail("put shutdown-schedule", DENIED, times=-1)
    problem(bringing(cloud))
    assert cloud.parts == {}


def test_what_cannot_be_undone_is_told_with_its_cause() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", ALLOCATION)
    cloud.fail("delete vm", DENIED, times=-1)
    cause, left = problem(bringing(cloud), Exit.LEFT_BEHIND)
    assert (cause.code, left.code) == (Code.NO_CAPACITY, Code.NOT_ALLOWED)
    assert "deleting vm my-dsvm after AllocationFailed" in (left.note or "")
    assert "it may be billed" in (left.note or "")


def test_rollback_leaves_what_another_up_uses() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", ALLOCATION)
    in_use = CloudError(Fault.IN_USE, "InUseNetworkSecurityGroupCannotBeDeleted", "an interface uses it")
    cloud.fail("delete nsg", in_use, times=-1)
    (found,) = problem(bringing(cloud))
    assert found.code is Code.NO_CANDIDATE
    assert cloud.kinds == [Kind.RESOURCE_GROUP, Kind.NSG]


def test_a_lost_connection_is_waited_for_before_what_was_made_is_looked_for() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", DENIED)
    cloud.fail("observe", UNREACHABLE, skip=1, times=10)
    problem(bringing(cloud))
    assert cloud.parts == {}


def test_what_cannot_be_looked_for_may_be_billed() -> None:
    cloud = FakeCloud()
    cloud.fail_operation("put vm", DENIED)
    cloud.fail("observe", UNREACHABLE, skip=1, times=-1)
    cause, left = problem(bringing(cloud), Exit.LEFT_BEHIND)
    assert (cause.code, left.code) == (Code.NOT_ALLOWED, Code.UNREACHABLE)
    assert "deleting my-dsvm after AuthorizationFailed" in (left.note or "")
    assert "it may be billed" in (left.note or "")


def test_a_deadline_that_is_over_is_no_reason_to_leave_something_behind() -> None:
    cloud = FakeCloud()
    work = bringing(cloud)

    def late(call: str) -> None:
        if call.startswith("wait vm") and Kind.VM in cloud.kinds:
            cloud.time.seconds += 4000

    cloud.on_call = late
    cloud.fail("wait vm", CloudError(Fault.TIMEOUT, "Timeout", "too late"))
    assert problem(work)[0].code is Code.TIMED_OUT
    assert cloud.parts == {}


def test_a_machine_whose_answer_was_lost_is_undone_like_any_other() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", UNREACHABLE, done=True)
    cloud.fail("put shutdown-schedule", DENIED, times=-1)
    problem(bringing(cloud))
    assert cloud.parts == {}


# A machine that is there


@pytest.mark.parametrize("error", [CAPACITY, DENIED])
def test_a_machine_that_cannot_be_started_is_kept(error: CloudError) -> None:
    cloud = made()
    cloud.set_power("deallocated")
    cloud.fail("start", error)
    (found,) = problem(bringing(cloud, spec(**TWO_REGIONS)))
    assert "my-dsvm is kept" in (found.note or "")
    assert cloud.kinds == list(Kind)
    assert not [call for call in cloud.writes if call.startswith("delete ")]


def test_a_machine_that_has_been_ready_is_marked_so_once() -> None:
    cloud = FakeCloud()
    up(cloud)
    assert tags.moment(cloud.body(Kind.PUBLIC_IP)["tags"], tags.READY) == NOW
    assert cloud.writes[-1] == "patch public-ip my-dsvm-ip"
    cloud.calls.clear()
    up(cloud)
    assert cloud.writes == []


def test_a_mark_that_cannot_be_set_is_no_failure() -> None:
    cloud = FakeCloud()
    cloud.fail("patch public-ip", DENIED)
    assert up(cloud).observed is not None
    up(cloud)
    assert tags.READY in cloud.body(Kind.PUBLIC_IP)["tags"]


@pytest.mark.parametrize(
    "marked",
    [True, False],
)
def test_a_machine_whose_start_failed_is_not_made_anew_by_the_next_run(marked: bool) -> None:
    cloud = made()
    if not marked:  # the run that made it was killed before it could set the mark; since then somebody has worked there
        del cloud.body(Kind.PUBLIC_IP)["tags"][tags.READY]
    cloud.set_power("deallocated")
    cloud.fail_operation("start", ALLOCATION)
    problem(bringing(cloud))
    assert cloud.body(Kind.VM)["properties"]["provisioningState"] == "Failed"
    up(cloud)
    assert not [call for call in cloud.writes if call.startswith("delete ")]


def test_a_machine_whose_address_was_deleted_is_not_made_anew_when_its_start_fails() -> None:
    cloud = made()
    cloud.remove(Kind.PUBLIC_IP)  # by hand, and with it the mark that the machine has lived
    cloud.set_power("deallocated")
    cloud.fail_operation("start", ALLOCATION)
    problem(bringing(cloud))
    up(cloud)
    assert not [call for call in cloud.writes if call.startswith("delete ")]


def test_a_machine_that_cannot_be_changed_is_kept() -> None:
    cloud = made()
    cloud.fail("patch vm", QUOTA)
    (found,) = problem(bringing(cloud, spec(sizes=(LARGE,))))
    assert found.code is Code.NO_QUOTA
    assert cloud.kinds == list(Kind)


def test_a_size_that_cannot_be_had_is_told_before_the_machine_is_switched_off() -> None:
    cloud = made()
    (found,) = problem(bringing(cloud, spec(sizes=(LARGE,)), Shop(limit=4, used=4)))
    assert found.code is Code.NO_CANDIDATE
    assert cloud.writes == []


def test_what_the_machine_holds_of_the_quota_is_its_own() -> None:
    cloud = made()
    up(cloud, spec(sizes=(LARGE,)), Shop(limit=8, used=4))
    assert cloud.body(Kind.VM)["properties"]["hardwareProfile"] == {"vmSize": LARGE}


# Consent


def ask(asked: list[list[str]]) -> Any:
    return lambda plan: asked.append(words(plan))


def test_consent_is_asked_before_a_machine_is_replaced() -> None:
    cloud, asked = made(), list[list[str]]()

    def consent(plan: Plan) -> None:
        assert cloud.writes == []
        asked.append(words(plan))

    up(cloud, spec(image="dsvm-ubuntu-20.04"), consent=consent)
    assert asked == [["replace public-ip", "replace nic", "replace vm loses"]]
    assert cloud.kinds == list(Kind)


def test_consent_is_asked_before_a_left_over_disk_goes() -> None:
    cloud, asked = made(), list[list[str]]()
    cloud.remove(Kind.VM)
    up(cloud, consent=ask(asked))
    assert asked == [["destroy disk loses", "add vm"]]


def test_consent_is_asked_once_for_all_candidates() -> None:
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
def test_no_consent_is_asked_where_nothing_is_lost(fields: dict[str, Any]) -> None:
    cloud = made()
    up(cloud, spec(**fields))
    assert cloud.writes


def test_a_machine_that_never_lived_goes_without_consent() -> None:
    cloud = made()
    cloud.body(Kind.VM)["properties"]["provisioningState"] = "Failed"
    cloud.remove(Kind.DISK)
    up(cloud)
    assert cloud.writes[0] == "delete vm my-dsvm"
    assert cloud.kinds == list(Kind)


def test_without_consent_nothing_is_written() -> None:
    cloud, market = made(), Shop(missing_providers=("Microsoft.DevTestLab",))

    def refuse(plan: Plan) -> None:
        raise Problem(Diagnostic(Code.NEEDS_CONSENT, "no"), exit_code=Exit.USAGE)

    with pytest.raises(Problem) as caught:
        up(cloud, spec(image="dsvm-ubuntu-20.04"), market, refuse)
    assert caught.value.diagnostics[0].code is Code.NEEDS_CONSENT
    assert (cloud.writes, market.written) == ([], [])


def test_a_replacement_that_cannot_be_had_is_told_before_anything_is_lost() -> None:
    cloud = made()
    (found,) = problem(bringing(cloud, spec(regions=("westus2",)), Shop(limit=0)))
    assert found.code is Code.NO_CANDIDATE
    assert cloud.writes == []


def test_a_replacement_stays_where_the_machine_was() -> None:
    wanted = spec(regions=("westus2", "eastus"), image="dsvm-ubuntu-20.04")
    cloud = made()
    up(cloud, wanted, consent=lambda _: None)
    assert cloud.body(Kind.VM)["location"] == "eastus"


def test_a_machine_that_is_made_anew_gets_a_lease_of_its_own() -> None:
    cloud = made()
    cloud.moment = NOW + timedelta(hours=3, minutes=50)
    up(cloud, spec(image="dsvm-ubuntu-20.04"), consent=lambda _: None)
    found = cloud.body(Kind.VM)["tags"]
    assert tags.moment(found, tags.ON_SINCE) == cloud.moment
    assert tags.moment(found, tags.LEASE_UNTIL) == cloud.moment + timedelta(hours=4)


# Cost cap


CAPPED: dict[str, Any] = {"lifecycle": {"max_cost": parse_money("1 USD")}}


@dataclass
class Priced(Shop):
    """A market with a price for what is in it."""

    per_hour: float = 0.5

    def price(self, size: str, region: str, spot: bool = False) -> float | None:
        return self.per_hour

    def prices(self, sizes: Iterable[str]) -> Prices:
        return Prices({(size, "eastus"): Rate(self.per_hour, None) for size in sizes})


def test_a_cost_cap_ends_the_lease_from_the_beginning() -> None:
    cloud = FakeCloud()
    assert up(cloud, spec(**CAPPED), Priced()).lease_until == NOW + timedelta(hours=2)
    assert cloud.body(Kind.VM)["tags"][tags.TERMS] == "lease=4h idle=20m cap=2h"
    assert cloud.body(Kind.SHUTDOWN_SCHEDULE)["properties"]["dailyRecurrence"]["time"] == "1000"


@dataclass
class Unpriced(Shop):
    """A market whose service of prices does not answer."""

    def price(self, size: str, region: str, spot: bool = False) -> float | None:
        return None


@pytest.mark.parametrize(
    ("priority", "terms", "price"),
    [("regular", "lease=4h idle=20m cap=1h54m", (0.526, "2026-06")), ("spot", "lease=4h idle=20m", (None, None))],
)
def test_a_cost_cap_is_kept_by_the_list_that_is_shipped(
    priority: str, terms: str, price: tuple[float | None, str | None]
) -> None:
    cloud = FakeCloud()
    plan = up(cloud, spec(priority=priority, **CAPPED), Unpriced()).plan
    assert cloud.body(Kind.VM)["tags"][tags.TERMS] == terms
    assert (plan.price.per_hour, plan.price.list_of) == price


def test_a_price_that_changes_while_a_machine_is_on_changes_nothing() -> None:
    cloud = FakeCloud()
    up(cloud, spec(**CAPPED), Priced())
    assert up(cloud, spec(**CAPPED), Priced(per_hour=1.0)).plan.is_empty
    cloud.set_power("deallocated")
    assert up(cloud, spec(**CAPPED), Priced(per_hour=1.0)).lease_until == NOW + timedelta(hours=1)


def test_terms_that_somebody_has_written_into_are_put_right() -> None:
    cloud = FakeCloud()
    up(cloud, spec(**CAPPED), Priced())
    for written in ("lease=9h idle=20m cap=2h", "lease=4h idle=20m", "for ever"):
        cloud.body(Kind.VM)["tags"][tags.TERMS] = written
        up(cloud, spec(**CAPPED), Priced())
        assert cloud.body(Kind.VM)["tags"][tags.TERMS] == "lease=4h idle=20m cap=2h"


def test_a_machine_that_is_made_anew_has_all_its_money_again() -> None:
    cloud = FakeCloud()
    up(cloud, spec(**CAPPED), Priced())
    cloud.moment = NOW + timedelta(minutes=90)
    up(cloud, spec(image="dsvm-ubuntu-20.04", **CAPPED), Priced(), consent=lambda _: None)
    assert tags.moment(cloud.body(Kind.VM)["tags"], tags.LEASE_UNTIL) == cloud.moment + timedelta(hours=2)


def test_a_machine_that_is_made_anew_by_the_same_spec_is_paid_at_the_price_of_now() -> None:
    cloud = FakeCloud()
    up(cloud, spec(**CAPPED), Priced())
    cloud.body(Kind.DISK)["properties"]["diskSizeGB"] = 300  # by hand, and a disk does not shrink
    up(cloud, spec(**CAPPED), Priced(per_hour=1.0), consent=lambda _: None)
    assert cloud.body(Kind.VM)["tags"][tags.TERMS] == "lease=4h idle=20m cap=1h"


# Others


def test_what_is_not_ours_stops_it_before_the_first_write() -> None:
    cloud = FakeCloud()
    cloud.add(Kind.VNET, {"tags": {"owner": "somebody"}, "properties": {}})
    (found,) = problem(bringing(cloud))
    assert found.code is Code.NAME_TAKEN
    assert cloud.writes == []


def test_a_machine_that_another_made_meanwhile_is_followed() -> None:
    cloud, other = FakeCloud(), made()

    def quicker(call: str) -> None:
        if call.startswith("put vm") and Kind.VM not in cloud.kinds:
            other.body(Kind.VM)["tags"]["gpuinfra:host-key"] = "ssh-ed25519 AAAAanother"
            cloud.add(Kind.VM, other.body(Kind.VM))
            cloud.add(Kind.DISK, other.body(Kind.DISK))

    cloud.on_call = quicker
    work = bringing(cloud)
    work.up(never)
    assert isinstance(work.progress, Heard)
    assert "vm my-dsvm is being made already; following that" in work.progress.lines
    assert bringing(cloud).plan().is_empty


def test_it_is_told_what_is_passed_over() -> None:
    cloud = FakeCloud()
    cloud.fail("put vm", CAPACITY)
    work = bringing(cloud, spec(**TWO_REGIONS))
    work.up(never)
    assert isinstance(work.progress, Heard)
    assert f"{SMALL} in eastus is passed over: SkuNotAvailable" in work.progress.lines
    assert cloud.observe(NAME).group == GROUP
