"""How long a machine may stay on."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuinfra.models.base import parse_duration, parse_money
from gpuinfra.models.hours import Hours
from gpuinfra.models.plan import Kind
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.lease import (
    STARTED_OUTSIDE,
    Lease,
    Terms,
    cause,
    decide,
    is_over,
    kept_terms,
    restarted_at,
    why_off,
    why_over,
)
from gpuinfra.provision.observed_resource import ObservedResource
from tests.unit.provision_help import NOW, made, spec

HOUR = timedelta(hours=1)


def machine(
    power: str = "running", since: str = "07:00", until: str = "11:00", of: Spec | None = None
) -> ObservedResource:
    """Return a machine of that spec with these times of today in its tags."""
    cloud = made(of)
    cloud.set_power(power)
    body = cloud.body(Kind.VM)
    body["tags"][tags.ON_SINCE] = f"2026-11-16T{since}:00Z"
    body["tags"][tags.LEASE_UNTIL] = f"2026-11-16T{until}:00Z"
    return ObservedResource(next(part.ref for part in cloud.parts.values() if part.ref.kind is Kind.VM), body)


def today(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-16T{clock}:00Z")


LONGER: dict[str, Any] = {"lifecycle": {"lease": 6 * HOUR}}
SHORTER: dict[str, Any] = {"lifecycle": {"lease": HOUR / 2}}
# It is 08:00, and the machine's spec said 4 h. The current spec, the machine, and its lease from now on.
TABLE: list[tuple[dict[str, Any], ObservedResource | None, tuple[str, str]]] = [
    ({}, None, ("08:00", "12:00")),
    ({}, machine(), ("07:00", "11:00")),
    ({}, machine("starting"), ("07:00", "11:00")),
    ({}, machine("stopped"), ("07:00", "11:00")),
    ({}, machine("deallocated"), ("08:00", "12:00")),
    ({}, machine("deallocating"), ("08:00", "12:00")),
    ({}, machine("unknown"), ("08:00", "12:00")),
    # Its lease is over, and it is still on: `up` renews it.
    ({}, machine(since="03:00", until="07:00"), ("03:00", "12:00")),
    ({}, machine(since="04:00", until="08:00"), ("04:00", "12:00")),
    # A changed spec counts from power-on.
    (LONGER, machine(), ("07:00", "13:00")),
    (SHORTER, machine(since="07:45"), ("07:45", "08:15")),
    (SHORTER, machine(), ("07:00", "08:30")),
    # A renewed lease is kept unless the spec's lease changes: a job may depend on it.
    ({}, machine(until="19:00"), ("07:00", "19:00")),
    ({"tags": {"team": "vision"}}, machine(until="19:00"), ("07:00", "19:00")),
    ({"tags": {"team": "vision"}}, machine(since="03:00", until="07:00"), ("03:00", "12:00")),
    (LONGER, machine(until="19:00"), ("07:00", "13:00")),
]


@pytest.mark.parametrize(("fields", "present", "expected"), TABLE)
def test_lease_depends_on_spec_and_machine(
    fields: dict[str, Any], present: ObservedResource | None, expected: tuple[str, str]
) -> None:
    assert decide(spec(**fields), present, NOW) == Lease(today(expected[0]), today(expected[1]))


def changed(part: ObservedResource, clock: str, state: str = "succeeded") -> ObservedResource:
    """The machine, with the time of Azure's last operation on it."""
    found = next(each for each in part.properties["instanceView"]["statuses"] if "Provisioning" in each["code"])
    found |= {"code": f"ProvisioningState/{state}", "time": f"2026-11-16T{clock}:00.1234567+00:00"}
    part.body["properties"]["provisioningState"] = state.capitalize()
    return part


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (changed(machine(since="02:00", until="06:00"), "07:00"), today("07:00")),
        # It was not off in between, as far as Azure shows.
        (changed(machine(since="02:00", until="06:00"), "05:00"), None),
        (machine(since="02:00", until="06:00"), None),
        (changed(machine(until="09:00"), "07:30"), None),
        (changed(machine("deallocated", since="02:00", until="06:00"), "07:00"), None),
        # A deallocation that failed is not a start.
        (changed(machine(since="02:00", until="06:00"), "07:00", "failed"), None),
    ],
)
def test_start_outside_gpuinfra_is_a_change_after_the_end_of_the_lease(
    part: ObservedResource, expected: datetime | None
) -> None:
    assert restarted_at(part) == expected
    assert (why_off(part, NOW) == STARTED_OUTSIDE) is bool(expected)


def test_up_gives_a_machine_that_was_started_outside_gpuinfra_a_lease_from_that_start() -> None:
    part = changed(machine(since="02:00", until="06:00"), "07:00")
    assert decide(spec(), part, NOW) == Lease(today("07:00"), today("12:00"))
    # The cap of the time before was spent at 06:00. It counts from the start.
    capped = Terms(4 * HOUR, HOUR, 3 * HOUR)
    part.body["tags"][tags.TERMS] = "lease=4h idle=1h cap=4h"
    assert decide(spec(), part, NOW, capped) == Lease(today("07:00"), today("10:00"))


@pytest.mark.parametrize(("tag", "since"), [(tags.ON_SINCE, NOW), (tags.LEASE_UNTIL, today("07:00"))])
def test_invalid_tags_are_rewritten(tag: str, since: datetime) -> None:
    part = machine()
    part.body["tags"][tag] = "soon"
    assert decide(spec(), part, NOW) == Lease(since, NOW + 4 * HOUR)


def test_lease_that_others_set_too_far_ahead_is_replaced() -> None:
    part = machine()
    part.body["tags"][tags.LEASE_UNTIL] = "2027-11-16T08:00:00Z"
    assert decide(spec(), part, NOW).until == NOW + 4 * HOUR


def test_new_lease_of_a_machine_that_is_on_does_not_pay_for_its_cost_cap_again() -> None:
    part = machine()
    del part.body["tags"][tags.LEASE_UNTIL]
    capped = Terms(4 * HOUR, HOUR, 3 * HOUR)
    assert decide(spec(), part, NOW, capped) == Lease(today("07:00"), today("10:00"))


def test_lease_ends_on_a_whole_minute_and_never_early() -> None:
    now = datetime(2026, 11, 16, 8, 0, 0, 250_000, tzinfo=UTC)
    assert decide(spec(), None, now) == Lease(NOW, NOW + 4 * HOUR)
    later = now + timedelta(seconds=1)
    assert decide(spec(), None, later).until == NOW + 4 * HOUR + timedelta(minutes=1)


def test_time_without_a_zone_is_utc() -> None:
    part = machine()
    part.body["tags"][tags.LEASE_UNTIL] = "2026-11-16T11:00:00"
    assert decide(spec(), part, NOW).until == today("11:00")


@pytest.mark.parametrize(("hours", "daily"), [(4, True), (23.4, True), (23.5, False), (24, False), (48, False)])
def test_a_daily_schedule_can_end_what_is_shorter_than_a_day_with_its_backstop(hours: float, daily: bool) -> None:
    lease = decide(spec(lifecycle={"lease": hours * HOUR}), None, NOW)
    assert lease.is_daily is daily


def test_daily_schedule_covers_a_lease_that_ends_today() -> None:
    part = machine(until="10:00")
    part.body["tags"][tags.ON_SINCE] = "2026-11-15T03:00:00Z"
    lease = decide(spec(), part, NOW)
    assert lease.until - NOW == 2 * HOUR
    assert lease.is_daily


# Hours and cost cap
def open_on(*windows: str) -> Spec:
    return spec(lifecycle={"hours": Hours.model_validate({"timezone": "UTC", "on": windows})})


# It is Monday, 08:00, and the lease is 4 h. The hours, the cap, and the end.
SETTLED: list[tuple[tuple[str, ...], str, str]] = [
    (("mon-fri 08:00-19:00",), "", "19:00"),
    (("mon-fri 11:00-13:00",), "", "13:00"),  # hours begin during the lease
    (("mon-fri 08:00-11:00",), "", "12:00"),  # the lease lasts beyond them
    (("mon-fri 08:00-12:00",), "", "12:00"),
    (("mon-fri 12:00-13:00",), "", "13:00"),  # hours begin as the lease ends
    (("mon-fri 13:00-14:00",), "", "12:00"),
    (("mon 08:00-13:00", "mon 13:00-15:00,16:00-18:00"), "", "15:00"),  # one stretch, and another
    (("daily 00:00-24:00",), "", "12:00"),  # hours that never end keep nothing on
    ((), "2h30m", "10:30"),
    ((), "5h", "12:00"),
    (("mon-fri 08:00-19:00",), "9h", "17:00"),
    (("mon-fri 08:00-19:00",), "12h", "19:00"),
]


@pytest.mark.parametrize(("windows", "cap", "expected"), SETTLED)
def test_hours_extend_the_lease_and_the_cap_limits_both(windows: tuple[str, ...], cap: str, expected: str) -> None:
    wanted = open_on(*windows) if windows else spec()
    terms = Terms(4 * HOUR, HOUR / 3, parse_duration(cap) if cap else None)
    assert decide(wanted, None, NOW, terms) == Lease(NOW, today(expected))


def test_lease_that_ends_in_the_last_minute_of_hours_ends_with_them() -> None:
    now = NOW - timedelta(seconds=30)
    assert decide(open_on("mon-fri 08:00-12:00,14:00-15:00"), None, now).until == today("12:00")


CAPPED = spec(lifecycle={"max_cost": parse_money("5 USD")})
TWO_HOURS = Terms(4 * HOUR, HOUR / 3, 2 * HOUR)


def test_cap_counts_from_power_on_and_is_never_exceeded() -> None:
    part = machine(of=CAPPED)
    assert decide(CAPPED, part, NOW, TWO_HOURS).until == today("09:00")
    part.body["tags"][tags.ON_SINCE] = "2026-11-16T07:00:59Z"
    assert decide(CAPPED, part, NOW, TWO_HOURS).until == today("09:00")


def test_machine_at_its_cap_gets_no_more_time() -> None:
    part = machine(since="05:00", until="07:00", of=CAPPED)
    assert decide(CAPPED, part, NOW, TWO_HOURS) == Lease(today("05:00"), today("07:00"))


def test_changed_spec_has_its_own_hours() -> None:
    assert decide(open_on("mon-fri 08:00-19:00"), machine(), NOW).until == today("19:00")


@pytest.mark.parametrize(
    ("power", "text", "kept"),
    [
        ("running", "lease=4h idle=20m cap=2h", True),
        ("deallocated", "lease=4h idle=20m cap=2h", False),
        ("running", "lease=4h idle=20m", False),
        ("running", "lease=5h idle=20m cap=2h", False),
        ("running", "lease=4h idle=9m cap=2h", False),
        ("running", "", False),
    ],
)
def test_terms_are_kept_from_power_on(power: str, text: str, kept: bool) -> None:
    part = machine(power, of=CAPPED)
    part.body["tags"][tags.TERMS] = text
    assert kept_terms(CAPPED, part) == (TWO_HOURS if kept else None)
    assert kept_terms(spec(), part) is None
    assert kept_terms(CAPPED, None) is None


# Whether it should be off
def marks(until: str, **more: str) -> dict[str, str]:
    return {tags.LEASE_UNTIL: until, tags.ON_SINCE: "2026-11-16T05:00:30Z", **more}


CAP, HOURS = "lease=4h idle=20m cap=3h", "UTC mon 06:00-08:00"


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (marks("2026-11-16T08:01:00Z"), ""),
        (marks("2026-12-31T08:00:00Z"), ""),  # 30 days, and 15 days of hours
        (marks("2027-11-16T08:01:00Z"), "its lease ends later than any lease can"),
        (marks("2026-11-16T08:00:00Z"), "lease is over"),
        (marks("2026-11-15T09:00:00"), "lease is over"),
        (marks("soon"), "it has no lease"),
        ({}, "it has no lease"),
        (None, "it has no lease"),
        ({tags.LEASE_UNTIL.upper(): "2026-11-16T08:01:00Z"}, ""),
        (marks("2026-11-16T08:00:00Z", **{tags.TERMS: CAP}), "cost cap is reached"),
        (marks("2026-11-16T07:59:00Z", **{tags.TERMS: CAP}), "lease is over"),
        (marks("2026-11-16T08:00:00Z", **{tags.HOURS: HOURS}), "hours are over"),
        (marks("2026-11-16T08:00:00Z", **{tags.HOURS: HOURS, tags.TERMS: CAP}), "cost cap is reached"),
        (marks("2026-11-16T07:59:00Z", **{tags.HOURS: HOURS}), "lease is over"),
    ],
)
def test_reasons_to_go_off_are_named(found: dict[str, str] | None, why: str) -> None:
    assert why_over(found, NOW) == why
    assert is_over(found, NOW) is bool(why)


def test_hours_of_the_spec_override_those_of_the_tag() -> None:
    found = marks("2026-11-16T08:00:00Z", **{tags.HOURS: HOURS})
    later = Hours.model_validate({"timezone": "UTC", "on": ("mon 06:00-09:00",)})
    assert (cause(found), cause(found, later), cause({})) == ("hours", "lease", "lease")
