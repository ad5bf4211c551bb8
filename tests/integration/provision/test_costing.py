"""Costs from Azure's activity log match the meter of the embedded Azure, whatever happens to a machine."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError

from gpuinfra.models.cost import Certainty
from gpuinfra.provision import tags
from gpuinfra.provision.azure.access import Access
from gpuinfra.provision.azure.clients import Clients
from gpuinfra.provision.azure.fleet import AzureFleet, read_log
from gpuinfra.provision.azure.market import AzureMarket
from gpuinfra.provision.costing.activity import KEPT, read_events
from gpuinfra.provision.costing.evidence import Evidence
from gpuinfra.provision.costing.history import CostHistory
from gpuinfra.provision.costing.report import TODAY, PriceBook
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.market import Prices, disk_per_month
from gpuinfra.provision.waiting import Interrupt
from tests.integration.provision.conftest import close
from tests.integration.sandbox.machine_help import Place
from tests.integration.sandbox.servers import Sandbox

HOUR = 3600.0


@pytest.fixture
def place(server: Sandbox) -> Place:
    return Place(server)


@contextmanager
def opened(access: Access) -> Iterator[Clients]:
    """Clients with a new token: an older one may have expired by the sandbox's clock."""
    clients = Clients(access)
    yield clients
    close(clients)


def counted(clients: Clients) -> tuple[dict[str, CostHistory], Evidence, PriceBook]:
    machines, disks, addresses = AzureFleet(clients).holdings()
    now = clients.clock.now()
    since = now - KEPT
    events = read_events(read_log(clients, since, now))
    evidence = Evidence(now, events, since, (), machines, disks, addresses)
    book = PriceBook(AzureMarket(clients).prices(evidence.sizes()), Prices())
    return {each.name: each for each in evidence.histories(book)}, evidence, book


class Histories:
    """Machines with one history each."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def make(self, name: str, **properties: Any) -> None:
        body = self.place.body(name, **properties)
        body["tags"] = {tags.NAME: name}
        with suppress(HttpResponseError):
            self.place.put(name, body)

    def act(self, verb: str, name: str) -> None:
        with suppress(HttpResponseError):
            getattr(self.place.machines, f"begin_{verb}")(self.place.group, name).result()

    def tag(self, name: str) -> None:
        body: Any = {"tags": {tags.NAME: name}}
        self.place.machines.begin_update(self.place.group, name, body).result()

    def play(self) -> None:
        """Play each history once, with an hour between its events."""
        spot = {"priority": "Spot", "evictionPolicy": "Deallocate", "billingProfile": {"maxPrice": -1}}
        for name in ("plain", "stopped", "resisting", "back", "changed"):
            self.make(name)
        self.make("evicted", **spot)
        self.place.fault("AllocationFailed", resource="never")
        self.make("never")
        self.place.fault("OSProvisioningTimedOut", resource="late")
        self.make("late")
        self.place.advance(HOUR)
        self.act("deallocate", "plain")
        self.act("power_off", "stopped")
        self.act("deallocate", "back")
        self.place.fault("InternalExecutionError", resource="resisting", method="POST", operation=True)
        self.act("deallocate", "resisting")
        self.place.machines.simulate_eviction(self.place.group, "evicted")
        self.tag("changed")
        self.place.advance(HOUR)
        self.act("start", "back")
        self.place.fault("AllocationFailed", resource="plain", method="POST")
        self.act("start", "plain")
        self.act("deallocate", "changed")
        self.place.advance(HOUR)
        self.tag("changed")


@pytest.fixture
def slow(place: Place) -> Iterator[Place]:
    """Operations take as long as in Azure, so that the billed moments differ."""
    control = place.sandbox.control
    before = control("GET", "status")["profile"]
    control("POST", "profile", {"profile": "realistic"})
    control("POST", "clock", {"speed": 600})
    yield place
    control("POST", "profile", {"profile": before})
    control("POST", "clock", {"speed": 1})


def test_cost_of_every_history_matches_the_bill(slow: Place, access: Access) -> None:
    place = slow
    Histories(place).play()
    place.sandbox.freeze()
    with opened(access) as clients:
        found, evidence, book = counted(clients)
    since = evidence.now - timedelta(days=1)
    assert len(found) == 8
    for name, history in found.items():
        amounts, bill = history.amounts(since, evidence.now), place.bill(name)
        price = max((piece.price or 0.0 for piece in history.pieces), default=0.0)
        # The bill is a little later, and Azure's clock has whole seconds.
        later = place.sandbox.control("GET", "status")["now"] - evidence.now.timestamp() if history.is_on else 0.0
        slack = 2.0 if history.is_on else 0.01
        assert amounts.seconds == pytest.approx(bill["billedSeconds"] - later, abs=slack), (name, bill["timeline"])
        expected = bill["costUsd"] - later / HOUR * price
        assert amounts.compute == pytest.approx(expected, abs=slack / HOUR * price + 1e-5), name
        assert history.compute_sure(since, evidence.now) is Certainty.EXACT, name
        # Neither its disk nor an address carries the tag of the machine: what they cost is not known.
        assert history.sure(since, evidence.now) is Certainty.ESTIMATED, name
        assert history.is_on == (bill["powerState"] not in {"deallocated", "deleted"}), name
    assert list(book.used) == [TODAY]


def test_disk_is_charged_from_its_creation(place: Place, access: Access) -> None:
    body = place.body("m")
    body["tags"] = {tags.NAME: "m"}
    place.put("m", body)
    (disk,) = place.disks.list_by_resource_group(place.group)
    tagged: Any = {"tags": {tags.NAME: "m"}}
    place.disks.begin_update(place.group, str(disk.name), tagged).result()
    place.advance(73 * HOUR)
    with opened(access) as clients:
        found, evidence, _ = counted(clients)
    month = disk_per_month(150, "StandardSSD_LRS")
    assert month
    amounts = found["m"].amounts(evidence.now - timedelta(days=30), evidence.now)
    assert amounts.disk == pytest.approx(month / 10, rel=0.01)


def test_machine_deleted_during_its_deallocation_is_charged_until_its_deletion(place: Place, access: Access) -> None:
    place = Place(place.sandbox, group="gpuinfra-m")
    place.make("m")
    place.advance(HOUR)
    place.fault("slow", resource="m", method="POST", operation=True, seconds=600)
    place.machines.begin_deallocate(place.group, "m", polling=False)
    place.machines.begin_delete(place.group, "m").result()
    place.advance(HOUR)
    with opened(access) as clients:
        found, evidence, _ = counted(clients)
    seconds = found["m"].amounts(evidence.now - timedelta(days=1), evidence.now).seconds
    assert seconds == pytest.approx(place.bill("m")["billedSeconds"], abs=1)


def test_unreadable_activity_log_is_reported(server: Sandbox, access: Access) -> None:
    server.control("POST", "faults", {"name": "AuthorizationFailed", "type": "values", "method": "GET"})
    with opened(access) as clients, pytest.raises(CloudError) as caught:
        read_log(clients, clients.clock.now() - KEPT, clients.clock.now())
    assert caught.value.fault is Fault.DENIED


PLACE = ("gpuinfra-m", "m", "eastus")
DEPLOYMENTS = "/subscriptions/{}/providers/Microsoft.Resources/deployments"


def deployment(parameters: dict[str, Any]) -> dict[str, Any]:
    kinds = {"list": "array", "str": "string"}
    declared = {name: {"type": kinds[type(each["value"]).__name__]} for name, each in parameters.items()}
    template = {"$schema": "https://x#", "contentVersion": "1.0.0.0", "parameters": declared, "resources": []}
    properties = {"mode": "Incremental", "template": template, "parameters": parameters}
    return {"location": "eastus", "properties": properties}


def put(server: Sandbox, name: str, parameters: dict[str, Any]) -> tuple[int, Any]:
    path = f"{DEPLOYMENTS.format(server.subscription)}/{name}?api-version=2022-09-01"
    status, _, body = server.http("PUT", path, deployment(parameters))
    return status, body


def test_shared_records_of_two_writers_are_both_kept(server: Sandbox, access: Access) -> None:
    with opened(access) as clients:
        fleet = AzureFleet(clients)
        fleet.add_record(*PLACE, [{"what": "on"}])
        listed = server.http("GET", f"{DEPLOYMENTS.format(server.subscription)}?api-version=2022-09-01")[2]["value"]
        (name,) = (each["name"] for each in listed)
        server.control("POST", "profile", {"profile": "realistic"})
        # While another writer's deployment is active, Azure refuses ours.
        theirs = {"entries": {"value": [{"what": "on"}, {"what": "off"}]}}
        assert put(server, name, theirs)[0] == 200
        status, body = put(server, name, theirs)
        assert (status, body["error"]["code"]) == (409, "DeploymentActive")
        clients.limits.interrupt = PassingTime(server)
        # A machine in another region, with the name of the earlier one.
        fleet.add_record("GPUINFRA-m", "M", "westus2", [{"what": "off"}, {"what": "gone"}])
        assert fleet.records() == [{"what": "on"}, {"what": "off"}, {"what": "gone"}]
        fleet.add_record("team", "m", "eastus", [{"what": "on"}])
        assert len(fleet.records()) == 4


class PassingTime(Interrupt):
    """Waits in the sandbox's time."""

    def __init__(self, server: Sandbox) -> None:
        super().__init__()
        self._server = server

    def sleep(self, seconds: float) -> None:
        self._server.control("POST", "clock", {"advance": 60 + seconds})


def test_record_that_others_wrote_wrongly_is_empty(server: Sandbox, access: Access) -> None:
    wrong: list[dict[str, Any]] = [
        {},
        {"entries": {"value": "x"}},
        {"entries": {"value": [1, None]}},
        {"other": {"value": []}},
    ]
    for number, parameters in enumerate(wrong):
        assert put(server, f"gpuinfra-receipts-{number}", parameters)[0] == 201
    assert put(server, "theirs", {"entries": {"value": [{"what": "on"}]}})[0] == 201
    with opened(access) as clients:
        assert AzureFleet(clients).records() == []
