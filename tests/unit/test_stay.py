"""A machine whose client leaves: it stays on only if something in Azure ends it."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpuinfra.app import stay as module
from gpuinfra.app.stay import check_ends, receipt_of_detached
from gpuinfra.diagnostics import Problem
from gpuinfra.models.plan import Kind
from gpuinfra.models.sizes import Rate
from gpuinfra.provision.agent_role import principal_of
from gpuinfra.provision.market import Prices
from gpuinfra.provision.observed_resource import ObservedResource
from tests.unit.provision_help import NAME, SMALL, FakeCloud, made, ref, spec

NOTHING: Any = None


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> FakeCloud:
    found = made()
    market = SimpleNamespace(prices=lambda _: Prices({(SMALL, "eastus"): Rate(0.5, 0.1)}))
    monkeypatch.setattr(module, "open_session", lambda *_, **__: SimpleNamespace(cloud=found, market=market))
    monkeypatch.setattr(module, "MachineCosts", lambda _: SimpleNamespace(histories=lambda *_: {}))
    return found


def grant(cloud: FakeCloud) -> None:
    cloud.allowed = [principal_of(ObservedResource(ref(Kind.VM), cloud.body(Kind.VM)))]


@pytest.mark.parametrize("has_schedule", [True, False])
@pytest.mark.parametrize("has_agent", [True, False])
def test_client_leaves_only_a_machine_that_something_in_azure_ends(
    cloud: FakeCloud, has_schedule: bool, has_agent: bool
) -> None:
    if has_agent:
        grant(cloud)
    if not has_schedule:
        cloud.remove(Kind.SHUTDOWN_SCHEDULE)
    if has_schedule or has_agent:
        check_ends(NOTHING, spec(), NOTHING)
    else:
        with pytest.raises(Problem) as caught:
            check_ends(NOTHING, spec(), NOTHING)
        assert "the job was not started" in (caught.value.diagnostics[0].note or "")
    assert cloud.writes == []


def test_receipt_of_a_detached_run_has_the_latest_time_and_the_highest_cost(cloud: FakeCloud) -> None:
    grant(cloud)
    receipt = receipt_of_detached(NOTHING, spec(), "r1", after_run="deallocate", keep_on_failure=None, frontend=NOTHING)
    shown = receipt.as_json()
    assert (shown["name"], shown["off"], shown["pricePerHourUsd"]) == (NAME, False, 0.5)
    assert shown["nextCommands"] == [f"gpuinfra down {NAME} --sandbox"]
    assert shown["staysOn"] == {
        "reason": "job",
        "run": "r1",
        "until": "2026-11-16T12:00:00Z",
        "latest": "2026-11-16T12:35:00Z",
        "endedBy": ["agent", "schedule"],
        "costUsd": 2.0,
        "mostUsd": 2.2917,
        "places": [],
    }
