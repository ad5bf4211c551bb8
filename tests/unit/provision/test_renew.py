"""Leases that are extended or released."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.models.base import parse_duration
from gpuinfra.models.hours import Hours
from gpuinfra.models.plan import Kind
from gpuinfra.models.stay import Purpose, Reason, Stay
from gpuinfra.provision import tags
from gpuinfra.provision.agent_role import AgentRole, RoleState, principal_of
from gpuinfra.provision.lease import decide
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.purpose import purpose_of
from gpuinfra.provision.renew import Renewed, hold, renew, renewal
from tests.unit.provision_help import (
    BUSY,
    DENIED,
    GROUP,
    NAME,
    NOW,
    UNREACHABLE,
    FakeCloud,
    made,
    plan_input,
    ref,
    spec,
)

HOUR = timedelta(hours=1)
MARKS = {
    tags.ON_SINCE: "2026-11-16T06:00:00Z",
    tags.LEASE_UNTIL: "2026-11-16T10:00:00Z",
    tags.TERMS: "lease=4h idle=20m",
}
CAPPED = {tags.TERMS: "lease=4h idle=20m cap=5h"}
OPEN = {tags.HOURS: "UTC mon 07:00-11:00,13:00-17:00"}
OVER = {tags.LEASE_UNTIL: "2026-11-16T07:00:00Z"}


def today(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-16T{clock}:00Z")


# It is 08:00; the machine is on since 06:00, for 4 h. Other tags, the action, and its result.
TABLE: list[tuple[dict[str, str], str, str, str]] = [
    ({}, "", "12:00", "changed"),
    ({}, "to 11:00", "11:00", "changed"),
    ({}, "to 09:00", "10:00", ""),  # only a release shortens it
    ({}, "extend 2h", "12:00", "changed"),
    ({}, "release", "08:01", "changed"),
    ({tags.LEASE_UNTIL: "2026-11-16T14:00:00Z"}, "", "14:00", ""),
    ({tags.TERMS: "lease=1h idle=20m"}, "", "10:00", ""),
    ({tags.TERMS: "nothing"}, "", "12:00", "changed"),  # the default of a spec
    ({tags.TERMS: "lease=30m idle=20m", tags.LEASE_UNTIL: "soon"}, "", "08:30", "changed"),
    # An expired lease begins now.
    (OVER, "", "12:00", "changed"),
    (OVER, "extend 2h", "10:00", "changed"),
    (OVER, "release", "07:00", ""),
    # The cap counts from power-on.
    (CAPPED, "", "11:00", "changed capped"),
    (CAPPED, "extend 1h", "11:00", "changed"),
    (CAPPED, "extend 2h", "11:00", "changed capped"),
    ({**CAPPED, tags.LEASE_UNTIL: "2026-11-16T11:00:00Z"}, "extend 1h", "11:00", "capped"),
    ({tags.TERMS: "lease=4h idle=20m cap=1h", **OVER}, "extend 1h", "07:00", "capped"),
    (CAPPED, "release", "08:01", "changed"),
    # Hours extend it to their end.
    (OPEN, "", "12:00", "changed"),
    (OPEN, "extend 30m", "11:00", "changed"),
    (OPEN, "extend 4h", "17:00", "changed"),
    (OPEN, "release", "10:00", ""),  # a release does not extend it
    ({**OPEN, tags.LEASE_UNTIL: "2026-11-16T16:00:00Z"}, "release", "11:00", "changed"),
    ({**OPEN, **CAPPED}, "extend 4h", "11:00", "changed capped"),
]


@pytest.mark.parametrize(("marks", "action", "until", "words"), TABLE)
def test_renewal_depends_on_lease_hours_and_cap(marks: dict[str, str], action: str, until: str, words: str) -> None:
    word, _, value = action.partition(" ")
    arguments: dict[str, Any] = {word: True} if word else {}
    if word == "to":
        arguments["to"] = today(value)
    elif word == "extend":
        arguments["extend"] = parse_duration(value)
    expected = Renewed(today(until), changed="changed" in words, capped="capped" in words)
    assert renewal({**MARKS, **marks}, NOW, **arguments) == expected


def test_hours_of_the_spec_override_those_of_the_tag() -> None:
    later = Hours.model_validate({"timezone": "UTC", "on": ("mon 08:00-18:00",)})
    assert renewal({**MARKS, **OPEN}, NOW, hours=later).until == today("18:00")


# Carrying it out


def machine(power: str = "running") -> FakeCloud:
    """Return a cloud in which the machine is on from 08:00 until 12:00, and it is 11:00."""
    cloud = made()
    cloud.set_power(power)
    cloud.moment = NOW + 3 * HOUR
    cloud.body(Kind.VM)["tags"]["owner"] = "alice"
    return cloud


def renew_lease(cloud: FakeCloud, group: str | None = GROUP, **action: Any) -> Renewed:
    return renew(cloud, NAME, group, deadline=cloud.time.deadline(600), **action)


def shown(cloud: FakeCloud) -> tuple[str, str, str]:
    """Return the values of tag and schedule."""
    daily = cloud.body(Kind.SHUTDOWN_SCHEDULE)["properties"]
    return cloud.body(Kind.VM)["tags"][tags.LEASE_UNTIL], daily["dailyRecurrence"]["time"], daily["status"]


@pytest.mark.parametrize("group", [GROUP, None])
def test_extension_moves_the_schedule_before_the_tag(group: str | None) -> None:
    cloud = machine()
    assert renew_lease(cloud, group) == Renewed(today("15:00"), changed=True, capped=False)
    assert shown(cloud) == ("2026-11-16T15:00:00Z", "1535", "Enabled")
    assert cloud.writes == [f"put {ref(Kind.SHUTDOWN_SCHEDULE)}", f"patch {ref(Kind.VM)}"]


@pytest.mark.parametrize("power", ["running", "stopped"])
def test_release_changes_the_tag_before_the_schedule(power: str) -> None:
    cloud = machine(power)
    assert renew_lease(cloud, release=True).until == today("11:01")
    assert shown(cloud) == ("2026-11-16T11:01:00Z", "1136", "Enabled")
    assert cloud.writes == [f"patch {ref(Kind.VM)}", f"put {ref(Kind.SHUTDOWN_SCHEDULE)}"]


def test_machine_that_was_started_outside_gpuinfra_gets_time_from_that_start() -> None:
    cloud = machine()
    marks = cloud.body(Kind.VM)["tags"]
    marks |= {tags.ON_SINCE: "2026-11-16T04:00:00Z", tags.LEASE_UNTIL: "2026-11-16T06:00:00Z"}
    marks[tags.TERMS] = "lease=4h idle=20m cap=2h"
    status = {"code": "ProvisioningState/succeeded", "time": "2026-11-16T10:30:00+00:00"}
    cloud.body(Kind.VM)["properties"]["instanceView"]["statuses"][0] = status
    assert renew_lease(cloud, extend=HOUR) == Renewed(today("12:00"), changed=True, capped=False)
    assert cloud.body(Kind.VM)["tags"][tags.ON_SINCE] == "2026-11-16T10:30:00Z"
    assert renew_lease(cloud, extend=HOUR) == Renewed(today("12:30"), changed=True, capped=True)


def test_extension_up_to_the_end_of_the_lease_is_in_time_for_the_schedule() -> None:
    cloud = machine()
    cloud.moment = today("12:00") - timedelta(seconds=1)
    assert renew_lease(cloud, extend=HOUR).old_stop is None
    assert shown(cloud) == ("2026-11-16T13:00:00Z", "1335", "Enabled")


def test_extension_after_the_end_of_the_lease_warns_of_the_old_stop() -> None:
    cloud = machine()
    cloud.moment = today("12:10")
    assert renew_lease(cloud, extend=HOUR).old_stop == today("12:35")
    # A release wants that stop.
    cloud = machine()
    cloud.moment = today("12:10")
    assert renew_lease(cloud, release=True).old_stop is None


def test_unchanged_lease_is_not_written() -> None:
    cloud = machine()
    cloud.moment = NOW
    assert renew_lease(cloud) == Renewed(today("12:00"), changed=False, capped=False)
    assert cloud.writes == []


def test_foreign_tags_are_kept_even_if_set_meanwhile() -> None:
    cloud = machine()
    before = dict(cloud.body(Kind.VM)["tags"])

    def tagged(call: str) -> None:
        if call.startswith("put shutdown-schedule"):
            cloud.body(Kind.VM)["tags"]["late"] = "but there"

    cloud.on_call = tagged
    renew_lease(cloud)
    assert cloud.body(Kind.VM)["tags"] == {**before, "late": "but there", tags.LEASE_UNTIL: "2026-11-16T15:00:00Z"}


def test_tag_in_another_case_is_not_duplicated() -> None:
    cloud = machine()
    body = cloud.body(Kind.VM)
    body["tags"] = {name.upper(): value for name, value in body["tags"].items()}
    renew_lease(cloud)
    found = [value for name, value in body["tags"].items() if name.casefold() == tags.LEASE_UNTIL]
    assert found == ["2026-11-16T15:00:00Z"]


def test_longer_lease_set_by_another_client_is_kept() -> None:
    cloud = machine()

    def also(call: str) -> None:
        if call.startswith("put shutdown-schedule"):
            cloud.body(Kind.VM)["tags"][tags.LEASE_UNTIL] = "2026-11-16T18:00:00Z"

    cloud.on_call = also
    renew_lease(cloud)
    assert shown(cloud) == ("2026-11-16T18:00:00Z", "1835", "Enabled")


def test_longer_lease_about_to_be_written_by_another_client_is_kept() -> None:
    cloud = machine()
    cloud.fail("patch vm", BUSY)

    def also(call: str) -> None:
        if call.startswith("patch vm"):
            cloud.body(Kind.VM)["tags"][tags.LEASE_UNTIL] = "2026-11-16T18:00:00Z"

    cloud.on_call = also
    renew_lease(cloud)
    assert shown(cloud) == ("2026-11-16T18:00:00Z", "1835", "Enabled")


def test_long_lease_is_scheduled_on_its_last_day() -> None:
    cloud = machine()
    renew_lease(cloud, extend=30 * HOUR)
    assert shown(cloud) == ("2026-11-17T18:00:00Z", "1835", "Disabled")
    cloud.moment = NOW + 11 * HOUR
    assert renew_lease(cloud).changed is False
    assert shown(cloud) == ("2026-11-17T18:00:00Z", "1835", "Enabled")


def test_lease_stays_within_the_schedule_if_the_agent_cannot_deallocate() -> None:
    cloud = machine()
    cloud.rights = [AgentRole(RoleState.REFUSED)]
    found = renew_lease(cloud, extend=30 * HOUR)
    assert (found.changed, found.needs_schedule) == (True, True)
    assert shown(cloud) == ("2026-11-17T10:24:00Z", "1059", "Enabled")


def test_machine_without_a_schedule_is_renewed_where_azure_refuses_one() -> None:
    cloud = machine()
    cloud.remove(Kind.SHUTDOWN_SCHEDULE)
    cloud.fail("put shutdown-schedule", DENIED, times=-1)
    assert renew_lease(cloud, extend=HOUR).until == today("13:00")
    assert cloud.body(Kind.VM)["tags"][tags.LEASE_UNTIL] == "2026-11-16T13:00:00Z"


def test_missing_schedule_is_recreated() -> None:
    cloud = made(spec(tags={"project": "mnist"}))
    cloud.remove(Kind.SHUTDOWN_SCHEDULE)
    cloud.moment = NOW + 3 * HOUR
    renew_lease(cloud)
    body = cloud.body(Kind.SHUTDOWN_SCHEDULE)
    assert body["tags"] == {"project": "mnist", tags.NAME: NAME}
    assert body["location"] == "eastus"
    assert body["properties"]["targetResourceId"] == plan_input().id(Kind.VM)
    assert shown(cloud)[1:] == ("1535", "Enabled")


def test_foreign_schedule_is_not_changed() -> None:
    cloud = machine()
    cloud.body(Kind.SHUTDOWN_SCHEDULE)["tags"] = {"owner": "alice"}
    renew_lease(cloud)
    assert cloud.writes == [f"patch {ref(Kind.VM)}"]
    assert shown(cloud)[1] == "1235"


# Refusals


@pytest.mark.parametrize("power", ["deallocated", "deallocating", "stopped", "stopping", "unknown"])
def test_machine_that_is_off_has_no_lease(power: str) -> None:
    cloud = machine(power)
    with pytest.raises(Problem) as caught:
        renew_lease(cloud)
    (found,) = caught.value.diagnostics
    assert (found.code, power in (found.note or "")) == (Code.MACHINE_IS_OFF, True)
    assert cloud.writes == []


@pytest.mark.parametrize("group", [GROUP, None])
def test_missing_or_untagged_machine_is_refused(group: str | None) -> None:
    foreign = machine()
    foreign.body(Kind.VM)["tags"] = {"owner": "alice"}
    for cloud, code in ((FakeCloud(), Code.NO_SUCH_MACHINE), (foreign, Code.UNTAGGED_MACHINE)):
        with pytest.raises(Problem) as caught:
            renew_lease(cloud, group)
        assert caught.value.diagnostics[0].code is code
        assert cloud.writes == []


def test_failed_schedule_update_keeps_the_lease() -> None:
    cloud = machine()
    cloud.fail("put shutdown-schedule", DENIED)
    with pytest.raises(Problem) as caught:
        renew_lease(cloud)
    assert caught.value.diagnostics[0].code is Code.NOT_ALLOWED
    assert shown(cloud) == ("2026-11-16T12:00:00Z", "1235", "Enabled")


@pytest.mark.parametrize("error", [BUSY, UNREACHABLE])
@pytest.mark.parametrize("call", ["put shutdown-schedule", "patch vm"])
def test_transient_failures_are_retried(call: str, error: Any) -> None:
    cloud = machine()
    cloud.fail(call, error, times=2)
    renew_lease(cloud)
    assert shown(cloud) == ("2026-11-16T15:00:00Z", "1535", "Enabled")


def test_machine_deleted_meanwhile_is_not_an_error() -> None:
    cloud = machine()

    def gone(call: str) -> None:
        if call.startswith("put shutdown-schedule"):
            cloud.remove(Kind.VM)

    cloud.on_call = gone
    renew_lease(cloud)
    assert f"patch {ref(Kind.VM)}" not in cloud.writes


@pytest.mark.parametrize(("days", "is_allowed"), [(29, True), (30, False)])
def test_extension_ends_at_most_thirty_days_from_now(days: int, is_allowed: bool) -> None:
    if is_allowed:
        assert renewal(MARKS, NOW, extend=timedelta(days=days)).changed
        return
    with pytest.raises(Problem, match="lease too long"):
        renewal(MARKS, NOW, extend=timedelta(days=days))


# A look at a failed job


def hold_for(cloud: FakeCloud, minutes: int = 30) -> Stay | None:
    return hold(cloud, NAME, GROUP, "r1", timedelta(minutes=minutes), cloud.time.deadline(600))


@pytest.mark.parametrize(("minutes", "until", "daily"), [(30, "11:30", "1205"), (90, "12:30", "1305")])
def test_hold_sets_the_end_of_lease_and_schedule(minutes: int, until: str, daily: str) -> None:
    cloud = machine()
    cloud.body(Kind.VM)["tags"][tags.HOURS] = OPEN[tags.HOURS]  # hours do not extend it
    stay = hold_for(cloud, minutes)
    assert stay is not None
    assert (stay.until, stay.latest, stay.is_ended) == (today(until), today(until) + timedelta(minutes=35), True)
    assert shown(cloud) == (f"2026-11-16T{until}:00Z", daily, "Enabled")
    assert cloud.body(Kind.VM)["tags"][tags.ON_FOR] == f"failed-job r1 2026-11-16T{until}:00Z"
    assert cloud.body(Kind.VM)["tags"]["owner"] == "alice"


def test_hold_never_exceeds_the_cost_cap() -> None:
    cloud = machine()
    cloud.body(Kind.VM)["tags"][tags.TERMS] = "lease=4h idle=20m cap=3h10m"
    stay = hold_for(cloud)
    assert stay is not None
    assert stay.until == today("11:10")
    cloud.moment = today("11:10")
    before = list(cloud.writes)
    assert hold_for(cloud) is None
    assert cloud.writes == before


@pytest.mark.parametrize(("has_schedule", "has_agent"), [(True, False), (False, True), (False, False)])
def test_hold_needs_something_in_azure_that_ends_it(has_schedule: bool, has_agent: bool) -> None:
    cloud = machine()
    cloud.allowed = [principal_of(ObservedResource(ref(Kind.VM), cloud.body(Kind.VM)))] if has_agent else []
    if not has_schedule:
        cloud.remove(Kind.SHUTDOWN_SCHEDULE)
        cloud.fail(f"put {ref(Kind.SHUTDOWN_SCHEDULE)}", DENIED, times=9)
    before = cloud.body(Kind.VM)["tags"][tags.LEASE_UNTIL]
    stay = hold_for(cloud)
    assert (stay is not None) == (has_schedule or has_agent)
    if stay is None:
        assert cloud.body(Kind.VM)["tags"][tags.LEASE_UNTIL] == before
        return
    assert (stay.has_agent, stay.backstop is not None) == (has_agent, has_schedule)
    assert stay.latest == today("11:30") + (timedelta(minutes=35) if has_schedule else timedelta())


def test_extension_makes_a_look_longer_and_a_renewal_ends_it() -> None:
    cloud = machine()
    hold_for(cloud)
    renew_lease(cloud, extend=HOUR)
    assert cloud.body(Kind.VM)["tags"][tags.ON_FOR] == "failed-job r1 2026-11-16T12:30:00Z"
    assert purpose_of(cloud.body(Kind.VM)["tags"]) == Purpose(Reason.FAILED_JOB, "r1")
    # A client that follows another job renews the lease: after that job the usual rules apply.
    renew_lease(cloud)
    assert purpose_of(cloud.body(Kind.VM)["tags"]) is None


def test_up_gives_a_machine_that_is_held_a_whole_lease() -> None:
    cloud = machine()
    hold_for(cloud)
    part = ObservedResource(ref(Kind.VM), cloud.body(Kind.VM))
    assert decide(spec(), part, cloud.moment).until == cloud.moment + 4 * HOUR


def test_renewal_for_a_detached_job_says_what_the_machine_is_on_for() -> None:
    cloud = machine()
    purpose = Purpose(Reason.JOB, "r2")
    until = today("11:30")
    assert renew_lease(cloud, to=until, purpose=purpose).changed is False
    assert purpose_of(cloud.body(Kind.VM)["tags"]) == purpose
