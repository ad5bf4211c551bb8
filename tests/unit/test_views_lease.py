"""The state of a lease and its layout."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from gpuinfra.models.hours import Hours
from gpuinfra.models.machine import LeaseState
from gpuinfra.models.plan import Kind
from gpuinfra.models.sizes import Rate
from gpuinfra.provision import tags
from gpuinfra.provision.fleet import lease_state
from gpuinfra.provision.market import Prices
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.renew import Renewed
from gpuinfra.views.lease import render, show
from tests.unit.provision_help import NOW, SMALL, made, ref

PRICES = Prices({(SMALL, "eastus"): Rate(0.5, 0.1)})
HOUR = timedelta(hours=1)


def machine(power: str = "running", **marks: str) -> ObservedResource:
    """Return a machine that is on from 08:00 until 12:00, unless other tags are given."""
    cloud = made()
    cloud.set_power(power)
    body = cloud.body(Kind.VM)
    body["tags"].update({f"gpuinfra:{name.replace('_', '-')}": value for name, value in marks.items()})
    return ObservedResource(ref(Kind.VM), body)


def state(part: ObservedResource, hours: Hours | None = None, prices: Prices = PRICES) -> LeaseState:
    """Return the state at 09:00."""
    return lease_state(part, hours, NOW + HOUR, prices)


def test_lease_is_shown() -> None:
    assert render(state(machine())) == [
        "my-dsvm",
        "  off at   2026-11-16 12:00:00Z, in 3 h, when its lease ends",
        "  running  since 2026-11-16 08:00:00Z",
        "  lease    4h from power-on, renewed while a run is active",
        "  idle     off after 20m with no job, no login and an idle GPU",
        "  cost     $0.50 so far, $2.00 until then at $0.500/h",
    ]


def test_lease_says_what_the_machine_is_on_for() -> None:
    looked = machine(lease_until="2026-11-16T09:30:00Z", on_for="failed-job r1 2026-11-16T09:30:00Z")
    assert render(state(looked))[1:3] == [
        "  off at   2026-11-16 09:30:00Z, in 30 min, when its lease ends",
        "  on for   a look at failed run r1",
    ]
    assert any("but not during the look" in line for line in render(state(looked)))
    detached = machine(lease_until="2026-11-16T12:00:00Z", on_for="job r1 2026-11-16T12:00:00Z")
    assert "  on for   detached run r1" in render(state(detached))
    # After another change of the lease, and while it is off, the tag says nothing.
    renewed = machine(lease_until="2026-11-16T13:00:00Z", on_for="failed-job r1 2026-11-16T12:00:00Z")
    for part in (renewed, machine("deallocated", on_for="failed-job r1 2026-11-16T12:00:00Z")):
        assert not [line for line in render(state(part)) if "on for" in line]


def test_lease_of_a_machine_that_was_started_outside_gpuinfra() -> None:
    marks = {"on_since": "2026-11-16T02:00:00Z", "lease_until": "2026-11-16T04:00:00Z"}
    part = machine(**marks, terms="lease=4h idle=20m cap=2h")
    status = {"code": "ProvisioningState/succeeded", "time": "2026-11-16T08:30:00+00:00"}
    part.properties["instanceView"]["statuses"][0] = status
    shown = state(part)
    assert render(shown)[1] == (
        "  off at    the next `gpuinfra reap`, or by its agent at 2026-11-16 10:30:00Z at the latest: "
        "its lease is over, and it was started or changed outside gpuinfra at 2026-11-16 08:30:00Z"
    )
    assert "  cost cap  2h from power-on, at 2026-11-16 10:30:00Z" in render(shown)
    assert shown.as_json()["startedOutside"] == {"at": "2026-11-16T08:30:00Z", "agentUntil": "2026-11-16T10:30:00Z"}


def test_hours_and_cap_are_shown() -> None:
    hours = Hours.model_validate({"timezone": "UTC", "on": ("mon 08:00-15:00",)})
    part = machine(lease_until="2026-11-16T15:00:00Z", terms="lease=4h idle=20m cap=9h30m")
    found = render(replace(state(part, hours), simulated=True))
    assert found[0] == "my-dsvm (simulated)"
    assert found[1].endswith("2026-11-16 15:00:00Z, in 6 h, when its hours end")
    assert found[5:7] == ["  hours     UTC mon 08:00-15:00", "  cost cap  9h30m from power-on, at 2026-11-16 17:30:00Z"]


@pytest.mark.parametrize(
    ("marks", "power", "line"),
    [
        (
            {"lease_until": "2026-11-16T08:59:00Z"},
            "running",
            "off at   as soon as possible: its lease ended at 2026-11-16 08:59:00Z",
        ),
        ({"lease_until": "soon"}, "running", "off at   as soon as possible: its lease cannot be read"),
        ({"terms": "lease=6h idle=20m cap=4h"}, "running", "in 3 h, when its cost cap is reached"),
        ({}, "stopped", "off at   2026-11-16 12:00:00Z, in 3 h, when its lease ends"),
        ({}, "deallocated", "off   a lease of 4h starts at power-on"),
    ],
)
def test_end_of_the_lease_is_shown(marks: dict[str, str], power: str, line: str) -> None:
    assert render(state(machine(power, **marks)))[1].endswith(line)


def test_deallocated_machine_costs_nothing() -> None:
    found = state(machine("deallocated", terms="lease=4h idle=20m cap=2h"))
    assert [line.split()[0] for line in render(found)] == ["my-dsvm", "off", "idle", "cost"]
    assert "cost cap" in render(found)[3]
    assert (found.cap_at, found.as_json()["onSince"], found.as_json()["costUsd"]) == (None, None, 0.0)


def test_unknown_price_is_a_dash() -> None:
    assert render(state(machine(), prices=Prices()))[-1] == "  cost     - so far, - until then"


def test_limiting_cap_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    part = machine()
    for capped, told in ((True, 1), (False, 0)):
        show(lease_state(part, None, NOW, PRICES, Renewed(NOW, changed=True, capped=capped)), json=False)
        assert capsys.readouterr().err.count("does not allow a later end") == told


def test_lease_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    part = machine(terms="lease=4h idle=20m cap=9h30m")
    renewed = Renewed(NOW + 4 * HOUR, changed=True, capped=False)
    show(lease_state(part, None, NOW + HOUR, PRICES, renewed, simulated=True), json=True)
    assert json.loads(capsys.readouterr().out) == {
        "schemaVersion": 1,
        "name": "my-dsvm",
        "resourceGroup": "gpuinfra-my-dsvm",
        "powerState": "running",
        "onSince": "2026-11-16T08:00:00Z",
        "leaseUntil": "2026-11-16T12:00:00Z",
        "leaseSecondsLeft": 10800.0,
        "cause": "lease",
        "terms": {"lease": "4h", "idle": "20m", "cap": "9h30m"},
        "capAt": "2026-11-16T17:30:00Z",
        "hours": None,
        "onFor": None,
        "pricePerHourUsd": 0.5,
        "costUsd": 0.5,
        "costAtEndUsd": 2.0,
        "changed": True,
        "capped": False,
        "scheduleMayStillStopAt": None,
        "startedOutside": None,
        "simulated": True,
    }


def test_control_characters_are_removed() -> None:
    part = machine()
    part.body["tags"][tags.NAME] = "my\x1b[2Jdsvm"
    assert "\x1b" not in "".join(render(state(part)))
