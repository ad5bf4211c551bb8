"""The real SDK lists machines of the embedded Azure: one call per page, not per machine."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuinfra.provision import tags
from gpuinfra.provision.azure.access import Access
from gpuinfra.provision.azure.clients import Clients
from gpuinfra.provision.azure.fleet import list_machines
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.fleet import machines, sizes
from gpuinfra.provision.market import Prices
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services import common
from gpuinfra.sandbox.services.compute import virtual_machines as service
from gpuinfra.sandbox.services.compute.vm_instance_view import show
from tests.integration.provision.conftest import close
from tests.integration.sandbox.machine_help import T4, Place
from tests.integration.sandbox.servers import Sandbox


@pytest.fixture
def clients(access: Access) -> Iterator[Clients]:
    made = Clients(access)
    yield made
    close(made)


@pytest.fixture
def place(server: Sandbox) -> Place:
    """Three machines: one of them off, one foreign."""
    made = Place(server)
    for name in ("first", "second", "theirs"):
        body = made.body(name) if name == "theirs" else made.body_like_ours(name)
        if name != "theirs":
            body["tags"] = {tags.NAME: name, tags.ON_SINCE: "2026-01-01T00:00:00Z"}
        made.put(name, body)
    made.machines.begin_deallocate("demo", "second").result()
    return made


def lists(server: Sandbox, after: int) -> list[str]:
    """Return the query of every request for machines since."""
    log = server.control("GET", "log")["requests"]
    return [each["query"] for each in log if each["number"] > after and "virtualMachines" in each["path"]]


def last(server: Sandbox) -> int:
    return int(server.control("GET", "log")["requests"][-1]["number"])


def check(rows: list[dict[str, Any]], clients: Clients) -> None:
    assert sizes(rows) == (T4,)
    found = machines(rows, [], clients.clock.now(), Prices())
    assert [(each.name, each.power_state, each.region, each.size, each.group) for each in found] == [
        ("first", "running", "eastus", T4, "demo"),
        ("second", "deallocated", "eastus", T4, "demo"),
    ]
    assert found[0].since == datetime(2026, 1, 1, tzinfo=UTC)
    assert found[1].since is not None
    assert abs(found[1].since - clients.clock.now()) < timedelta(minutes=1)


def test_all_machines_are_listed_in_one_call(place: Place, clients: Clients) -> None:
    before = last(place.sandbox)
    rows = list_machines(clients)
    assert len(lists(place.sandbox, before)) == 1
    check(rows, clients)


def test_machines_are_listed_in_one_call_per_page(
    place: Place, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(common, "PAGE", 2)
    before = last(place.sandbox)
    rows = list_machines(clients)
    queries = lists(place.sandbox, before)
    assert len(queries) == 2
    assert all("statusonly=true" in query.lower() for query in queries)
    check(rows, clients)


def test_machines_are_listed_in_two_calls_per_page_when_statuses_come_without_bodies(
    place: Place, clients: Clients, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lean(machine: Resource, view: dict[str, Any] | None = None, **options: bool) -> dict[str, Any]:
        body = show(machine, view, **options)
        if view is None:
            return body
        return {"id": body["id"].upper(), "name": body["name"], "properties": {"instanceView": view}}

    monkeypatch.setattr(service, "show", lean)
    before = last(place.sandbox)
    rows = list_machines(clients)
    assert ["statusOnly=true" in query for query in lists(place.sandbox, before)] == [True, False]
    check(rows, clients)


def test_empty_subscription_has_no_machines(server: Sandbox, clients: Clients) -> None:
    assert list_machines(clients) == []


def test_azure_error_becomes_a_cloud_error(server: Sandbox, clients: Clients) -> None:
    server.control("POST", "faults", {"name": "AuthorizationFailed", "type": "virtualMachines"})
    with pytest.raises(CloudError) as caught:
        list_machines(clients)
    assert caught.value.fault is Fault.DENIED
