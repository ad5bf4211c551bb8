"""Leases that are given more time, or ended."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from gpuinfra.diagnostics import Code, Problem
from gpuinfra.models.durations import parse_duration
from gpuinfra.models.hours import Hours
from gpuinfra.models.resource import Kind
from gpuinfra.provision import tags
from gpuinfra.provision.lifecycle.renew import Renewed, renew, renewal
from tests.unit.provision_help import (
    BUSY,
    DENIED,
    GROUP,
    NAME,
    NOW,
    UNREACHABLE,
    FakeCloud,
    made,
    ref,
    setting,
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


# It is 08:00; the machine is on since 06:00, for 4 h. What its tags say else, what is wished, and what comes of it.
TABLE: list[tuple[dict[str, str], str, str, str]] = [
    ({}, "", "12:00", "changed"),
    ({}, "to 11:00", "11:00", "changed"),
    ({}, "to 09:00", "10:00", ""),  # only a release makes it shorter
    ({}, "extend 2h", "12:00", "changed"),
    ({}, "release", "08:01", "changed"),
    ({tags.LEASE_UNTIL: "2026-11-16T14:00:00Z"}, "", "14:00", ""),
    ({tags.TERMS: "lease=1h idle=20m"}, "", "10:00", ""),
    ({tags.TERMS: "nothing"}, "", "12:00", "changed"),  # what a spec that says nothing has
    ({tags.TERMS: "lease=30m idle=20m", tags.LEASE_UNTIL: "soon"}, "", "08:30", "changed"),
    # One that is over begins now.
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
    # Hours hold it to their end.
    (OPEN, "", "12:00", "changed"),
    (OPEN, "extend 30m", "11:00", "changed"),
    (OPEN, "extend 4h", "17:00", "changed"),
    (OPEN, "release", "10:00", ""),  # a release does not make it longer
    ({**OPEN, tags.LEASE_UNTIL: "2026-11-16T16:00:00Z"}, "release", "11:00", "changed"),
    ({**OPEN, **CAPPED}, "extend 4h", "11:00", "changed capped"),
]


@pytest.mark.parametrize(("marks", "wish", "until", "words"), TABLE)
def test_what_becomes_of_a_lease(marks: dict[str, str], wish: str, until: str, words: str) -> None:
    word, _, value = wish.partition(" ")
    wished: dict[str, Any] = {word: True} if word else {}
    if word == "to":
        wished["to"] = today(value)
    elif word == "extend":
        wished["extend"] = parse_duration(value)
    expected = Renewed(today(until), changed="changed" in words, capped="capped" in words)
    assert renewal({**MARKS, **marks}, NOW, **wished) == expected


def test_hours_of_the_spec_come_before_those_of_the_tag() -> None:
    later = Hours.model_validate({"timezone": "UTC", "on": ("mon 08:00-18:00",)})
    assert renewal({**MARKS, **OPEN}, NOW, hours=later).until == today("18:00")


# Doing it


def machine(power: str = "running") -> FakeCloud:
    """A cloud in which the machine is on since 08:00 until 12:00, and it is 11:00."""
    cloud = made()
    cloud.set_power(power)
    cloud.moment = NOW + 3 * HOUR
    cloud.body(Kind.VM)["tags"]["owner"] = "somebody"
    return cloud


def renewed(cloud: FakeCloud, group: str | None = GROUP, **wish: Any) -> Renewed:
    return renew(cloud, NAME, group, deadline=cloud.time.deadline(600), **wish)


def shown(cloud: FakeCloud) -> tuple[str, str, str]:
    """What tag and schedule say."""
    daily = cloud.body(Kind.SHUTDOWN_SCHEDULE)["properties"]
    return cloud.body(Kind.VM)["tags"][tags.LEASE_UNTIL], daily["dailyRecurrence"]["time"], daily["status"]


@pytest.mark.parametrize("group", [GROUP, None])
def test_more_time_is_the_schedules_first_and_then_the_tags(group: str | None) -> None:
    cloud = machine()
    assert renewed(cloud, group) == Renewed(today("15:00"), changed=True, capped=False)
    assert shown(cloud) == ("2026-11-16T15:00:00Z", "1500", "Enabled")
    assert cloud.writes == [f"put {ref(Kind.SHUTDOWN_SCHEDULE)}", f"patch {ref(Kind.VM)}"]


@pytest.mark.parametrize("power", ["running", "stopped"])
def test_less_time_is_the_tags_first_and_then_the_schedules(power: str) -> None:
    cloud = machine(power)
    assert renewed(cloud, release=True).until == today("11:01")
    assert shown(cloud) == ("2026-11-16T11:01:00Z", "1101", "Enabled")
    assert cloud.writes == [f"patch {ref(Kind.VM)}", f"put {ref(Kind.SHUTDOWN_SCHEDULE)}"]


def test_what_is_so_already_is_not_written() -> None:
    cloud = machine()
    cloud.moment = NOW
    assert renewed(cloud) == Renewed(today("12:00"), changed=False, capped=False)
    assert cloud.writes == []


def test_tags_of_others_stay_also_those_of_this_moment() -> None:
    cloud = machine()
    before = dict(cloud.body(Kind.VM)["tags"])

    def tagged(call: str) -> None:
        if call.startswith("put shutdown-schedule"):
            cloud.body(Kind.VM)["tags"]["late"] = "but there"

    cloud.on_call = tagged
    renewed(cloud)
    assert cloud.body(Kind.VM)["tags"] == {**before, "late": "but there", tags.LEASE_UNTIL: "2026-11-16T15:00:00Z"}


def test_a_tag_in_another_case_is_not_doubled() -> None:
    cloud = machine()
    body = cloud.body(Kind.VM)
    body["tags"] = {name.upper(): value for name, value in body["tags"].items()}
    renewed(cloud)
    found = [value for name, value in body["tags"].items() if name.casefold() == tags.LEASE_UNTIL]
    assert found == ["2026-11-16T15:00:00Z"]


def test_more_time_that_another_gave_meanwhile_is_not_taken_away() -> None:
    cloud = machine()

    def also(call: str) -> None:
        if call.startswith("put shutdown-schedule"):
            cloud.body(Kind.VM)["tags"][tags.LEASE_UNTIL] = "2026-11-16T18:00:00Z"

    cloud.on_call = also
    renewed(cloud)
    assert shown(cloud) == ("2026-11-16T18:00:00Z", "1800", "Enabled")


def test_more_time_that_another_is_about_to_write_is_not_taken_away() -> None:
    cloud = machine()
    cloud.fail("patch vm", BUSY)

    def also(call: str) -> None:
        if call.startswith("patch vm"):
            cloud.body(Kind.VM)["tags"][tags.LEASE_UNTIL] = "2026-11-16T18:00:00Z"

    cloud.on_call = also
    renewed(cloud)
    assert shown(cloud) == ("2026-11-16T18:00:00Z", "1800", "Enabled")


def test_a_long_lease_is_the_schedules_again_in_its_last_day() -> None:
    cloud = machine()
    renewed(cloud, extend=30 * HOUR)
    assert shown(cloud) == ("2026-11-17T18:00:00Z", "1800", "Disabled")
    cloud.moment = NOW + 11 * HOUR
    assert renewed(cloud).changed is False
    assert shown(cloud) == ("2026-11-17T18:00:00Z", "1800", "Enabled")


def test_a_schedule_that_is_gone_is_made_again() -> None:
    cloud = made(spec(tags={"project": "mnist"}))
    cloud.remove(Kind.SHUTDOWN_SCHEDULE)
    cloud.moment = NOW + 3 * HOUR
    renewed(cloud)
    body = cloud.body(Kind.SHUTDOWN_SCHEDULE)
    assert body["tags"] == {"project": "mnist", tags.NAME: NAME}
    assert body["location"] == "eastus"
    assert body["properties"]["targetResourceId"] == setting().id(Kind.VM)
    assert shown(cloud)[1:] == ("1500", "Enabled")


def test_a_schedule_of_somebody_else_is_left_alone() -> None:
    cloud = machine()
    cloud.body(Kind.SHUTDOWN_SCHEDULE)["tags"] = {"owner": "somebody"}
    renewed(cloud)
    assert cloud.writes == [f"patch {ref(Kind.VM)}"]
    assert shown(cloud)[1] == "1200"


# What it cannot do


@pytest.mark.parametrize("power", ["deallocated", "deallocating", "stopped", "stopping", "unknown"])
def test_a_machine_that_is_not_on_has_no_lease(power: str) -> None:
    cloud = machine(power)
    with pytest.raises(Problem) as caught:
        renewed(cloud)
    (found,) = caught.value.diagnostics
    assert (found.code, power in (found.note or "")) == (Code.MACHINE_IS_OFF, True)
    assert cloud.writes == []


@pytest.mark.parametrize("group", [GROUP, None])
def test_no_such_machine(group: str | None) -> None:
    foreign = machine()
    foreign.body(Kind.VM)["tags"] = {"owner": "somebody"}
    for cloud, code in ((FakeCloud(), Code.NO_SUCH_MACHINE), (foreign, Code.UNTAGGED_MACHINE)):
        with pytest.raises(Problem) as caught:
            renewed(cloud, group)
        assert caught.value.diagnostics[0].code is code
        assert cloud.writes == []


def test_a_schedule_that_cannot_be_moved_leaves_the_lease_as_it_is() -> None:
    cloud = machine()
    cloud.fail("put shutdown-schedule", DENIED)
    with pytest.raises(Problem) as caught:
        renewed(cloud)
    assert caught.value.diagnostics[0].code is Code.NOT_ALLOWED
    assert shown(cloud) == ("2026-11-16T12:00:00Z", "1200", "Enabled")


@pytest.mark.parametrize("error", [BUSY, UNREACHABLE])
@pytest.mark.parametrize("call", ["put shutdown-schedule", "patch vm"])
def test_what_may_pass_is_tried_again(call: str, error: Any) -> None:
    cloud = machine()
    cloud.fail(call, error, times=2)
    renewed(cloud)
    assert shown(cloud) == ("2026-11-16T15:00:00Z", "1500", "Enabled")


def test_a_machine_that_goes_meanwhile_is_no_trouble() -> None:
    cloud = machine()

    def gone(call: str) -> None:
        if call.startswith("put shutdown-schedule"):
            cloud.remove(Kind.VM)

    cloud.on_call = gone
    renewed(cloud)
    assert f"patch {ref(Kind.VM)}" not in cloud.writes
