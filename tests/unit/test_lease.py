"""How long a machine may be on."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuinfra.models.resource import Kind
from gpuinfra.models.spec import Spec
from provision import tags
from provision.cloud import Part
from provision.lifecycle.lease import decide
from provision.setting import Lease
from tests.unit.provision_help import NOW, made, spec

HOUR = timedelta(hours=1)


def machine(power: str = "running", since: str = "07:00", until: str = "11:00", of: Spec | None = None) -> Part:
    """A machine of that spec with these times of today in its tags."""
    cloud = made(of)
    cloud.set_power(power)
    body = cloud.body(Kind.MACHINE)
    body["tags"][tags.ON_SINCE] = f"2026-11-16T{since}:00Z"
    body["tags"][tags.LEASE_UNTIL] = f"2026-11-16T{until}:00Z"
    return Part(next(part.ref for part in cloud.parts.values() if part.ref.kind is Kind.MACHINE), body)


def today(clock: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-16T{clock}:00Z")


LONGER: dict[str, Any] = {"lifecycle": {"lease": 6 * HOUR}}
SHORTER: dict[str, Any] = {"lifecycle": {"lease": HOUR / 2}}
# It is 08:00, and the spec of a machine that is there says 4 h. What it says now, the machine, its lease from then on.
TABLE: list[tuple[dict[str, Any], Part | None, tuple[str, str]]] = [
    ({}, None, ("08:00", "12:00")),
    ({}, machine(), ("07:00", "11:00")),
    ({}, machine("starting"), ("07:00", "11:00")),
    ({}, machine("stopped"), ("07:00", "11:00")),
    ({}, machine("deallocated"), ("08:00", "12:00")),
    ({}, machine("deallocating"), ("08:00", "12:00")),
    ({}, machine("unknown"), ("08:00", "12:00")),
    # Its lease is over, and it is still on: whoever calls `up` wants it.
    ({}, machine(since="03:00", until="07:00"), ("03:00", "12:00")),
    ({}, machine(since="04:00", until="08:00"), ("04:00", "12:00")),
    # Another spec counts from when it was switched on.
    (LONGER, machine(), ("07:00", "13:00")),
    (SHORTER, machine(since="07:45"), ("07:45", "08:15")),
    (SHORTER, machine(), ("07:00", "08:30")),
    # A lease that was renewed holds as long as the spec is the same.
    ({}, machine(until="19:00"), ("07:00", "19:00")),
]


@pytest.mark.parametrize(("fields", "present", "expected"), TABLE)
def test_the_lease(fields: dict[str, Any], present: Part | None, expected: tuple[str, str]) -> None:
    assert decide(spec(**fields), present, NOW) == Lease(today(expected[0]), today(expected[1]))


@pytest.mark.parametrize("tag", [tags.ON_SINCE, tags.LEASE_UNTIL])
def test_tags_that_say_nothing_are_written_anew(tag: str) -> None:
    part = machine()
    part.body["tags"][tag] = "soon"
    assert decide(spec(), part, NOW) == Lease(NOW, NOW + 4 * HOUR)


def test_a_lease_ends_on_a_whole_minute_and_never_early() -> None:
    now = datetime(2026, 11, 16, 8, 0, 0, 250_000, tzinfo=UTC)
    assert decide(spec(), None, now) == Lease(NOW, NOW + 4 * HOUR)
    later = now + timedelta(seconds=1)
    assert decide(spec(), None, later).until == NOW + 4 * HOUR + timedelta(minutes=1)


def test_a_moment_without_a_zone_is_utc() -> None:
    part = machine()
    part.body["tags"][tags.LEASE_UNTIL] = "2026-11-16T11:00:00"
    assert decide(spec(), part, NOW).until == today("11:00")


@pytest.mark.parametrize(("hours", "daily"), [(4, True), (23.9, True), (24, False), (48, False)])
def test_a_daily_schedule_can_end_what_is_shorter_than_a_day(hours: float, daily: bool) -> None:
    lease = decide(spec(lifecycle={"lease": hours * HOUR}), None, NOW)
    assert lease.is_daily is daily


def test_a_lease_that_ends_today_can_be_ended_by_the_daily_schedule_however_long_the_machine_was_on() -> None:
    part = machine(until="10:00")
    part.body["tags"][tags.ON_SINCE] = "2026-11-15T03:00:00Z"
    lease = decide(spec(), part, NOW)
    assert lease.until - NOW == 2 * HOUR
    assert lease.is_daily
