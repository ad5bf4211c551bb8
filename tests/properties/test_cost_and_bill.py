"""`cost` matches the bill of the embedded Azure to the cent, whatever happened to a machine."""

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuinfra.models.cost import Certainty
from gpuinfra.models.receipt import (
    LedgerEntry,
    LedgerEntryKind,
    OffProof,
    Receipt,
    entries_from_json,
    entry_from_receipt,
)
from gpuinfra.models.sizes import Rate
from gpuinfra.provision import tags
from gpuinfra.provision.costing.activity import Event, read_events
from gpuinfra.provision.costing.evidence import Evidence
from gpuinfra.provision.costing.history import CostHistory
from gpuinfra.provision.costing.report import PriceBook, record_of
from gpuinfra.provision.market import Prices
from gpuinfra.sandbox.kernel.call import CLOUD_ITSELF, Call
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError
from gpuinfra.sandbox.services.registry import SERVICES

REGION = "eastus"
SIZES = ("Standard_NC4as_T4_v3", "Standard_NC8as_T4_v3", "Standard_NC16as_T4_v3")
STANDSTILL = 1e-9
HOUR = 3600.0
DISK = {"diskSizeGB": 150, "managedDisk": {"storageAccountType": "StandardSSD_LRS"}}
DISK_PER_MONTH, ADDRESS_PER_MONTH = 19.2, 3.65
MONTH = 730 * HOUR
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me@example"
SPOT = {"priority": "Spot", "evictionPolicy": "Deallocate", "billingProfile": {"maxPrice": -1}}


class Place:
    """An embedded Azure in this process, with a manual clock."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud, self.numbers = cloud, itertools.count()
        cloud.store.set_setting("subscription", "s")
        cloud.store.set_setting("tenant", "t")
        cloud.store.set_setting("profile", "realistic")
        cloud.clock.set_speed(STANDSTILL)
        rates = {
            (size, REGION): Rate(cloud.catalogue.price(size, REGION, False), cloud.catalogue.price(size, REGION, True))
            for size in SIZES
        }
        self.book = PriceBook(Prices(rates), Prices())

    def ask(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """Return the body of the response, or None where Azure refuses and changes nothing."""
        self.cloud.settle()
        call = Call(self.cloud, method, path, {}, query, {}, body, CLOUD_ITSELF, "https://localhost", "")
        try:
            return self.cloud.dispatch(call).body
        except ArmError:
            return None

    def pass_time(self, seconds: float) -> None:
        self.cloud.clock.advance(seconds)
        self.cloud.settle()
        self.cloud.guest_orders.clear()

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.cloud.now, UTC)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    cloud = Cloud(tmp_path_factory.mktemp("azure"), SERVICES)
    yield Place(cloud)
    cloud.store.close()


@dataclass
class Life:
    """A machine, and everything that users do to it."""

    place: Place
    name: str
    keeps_ledger: bool
    spot: bool = False
    disk_is_listed: bool = True
    address_is_listed: bool = True
    lease: float | None = None
    entries: list[LedgerEntry] = field(default_factory=list)
    has_failed_change: bool = False

    def __post_init__(self) -> None:
        place, self.group = self.place, f"/subscriptions/s/resourceGroups/gpuinfra-{self.name}"
        place.ask("PUT", self.group, {"location": REGION})
        network = f"{self.group}/providers/Microsoft.Network"
        subnets = [{"name": "inner", "properties": {"addressPrefix": "10.0.0.0/20"}}]
        space = {"addressSpace": {"addressPrefixes": ["10.0.0.0/16"]}}
        place.ask(
            "PUT", f"{network}/virtualNetworks/net", {"location": REGION, "properties": {**space, "subnets": subnets}}
        )
        place.pass_time(HOUR)
        subnet = {"subnet": {"id": f"{network}/virtualNetworks/net/subnets/inner"}}
        configuration = {"ipConfigurations": [{"name": "first", "properties": subnet}]}
        self.interface = f"{network}/networkInterfaces/nic"
        place.ask("PUT", self.interface, {"location": REGION, "properties": configuration})
        place.pass_time(HOUR)
        self.id = f"{self.group}/providers/Microsoft.Compute/virtualMachines/{self.name}"

    def post(self, verb: str) -> None:
        self.place.ask("POST", f"{self.id}/{verb}")

    def create(self, number: int) -> None:
        body = {
            "location": REGION,
            "tags": {tags.NAME: self.name},
            "properties": {
                "hardwareProfile": {"vmSize": SIZES[number]},
                "storageProfile": {
                    "imageReference": {
                        "publisher": "microsoft-dsvm",
                        "offer": "ubuntu-2204",
                        "sku": "2204-gen2",
                        "version": "latest",
                    },
                    "osDisk": {"createOption": "FromImage", "deleteOption": "Delete", **DISK},
                },
                "osProfile": {
                    "computerName": "vm",
                    "adminUsername": "ada",
                    "linuxConfiguration": {
                        "disablePasswordAuthentication": True,
                        "ssh": {"publicKeys": [{"path": "/home/ada/.ssh/authorized_keys", "keyData": KEY}]},
                    },
                },
                "networkProfile": {"networkInterfaces": [{"id": self.interface, "properties": {"primary": True}}]},
                **(SPOT if self.spot else {}),
            },
        }
        if self.place.ask("GET", self.id) is None:
            self._note(LedgerEntryKind.ON, number)
            assert self.place.ask("PUT", self.id, body) is not None

    def resize_in_portal(self, number: int) -> None:
        self.place.ask("PATCH", self.id, {"properties": {"hardwareProfile": {"vmSize": SIZES[number]}}})

    def resize_by_up(self, number: int) -> None:
        """Resize as `up` does: deallocate, change, start."""
        body = {"properties": {"hardwareProfile": {"vmSize": SIZES[number]}}}
        at = self.place.now()
        for method, path, sent in (
            ("POST", f"{self.id}/deallocate", None),
            ("PATCH", self.id, body),
            ("POST", f"{self.id}/start", None),
        ):
            if self.place.ask("GET", self.id) is not None:
                self.place.ask(method, path, sent)
                self.place.pass_time(HOUR / 3)
        if self._size() == SIZES[number]:
            self._note(LedgerEntryKind.ON, number, at)

    def tag(self, number: int) -> None:
        """Change a tag, as a lease renewal does."""
        self.place.ask("PATCH", self.id, {"tags": {tags.NAME: self.name, "number": str(number)}})

    def delete(self) -> None:
        self.place.ask("DELETE", self.id)

    def _size(self) -> str:
        body = self.place.ask("GET", self.id)
        return str(body["properties"]["hardwareProfile"]["vmSize"]) if body else ""

    def _note(self, what: LedgerEntryKind, number: int, at: datetime | None = None) -> None:
        size = SIZES[number]
        if self.keeps_ledger:
            price = self.place.cloud.catalogue.price(size, REGION, self.spot)
            self.entries.append(
                LedgerEntry(
                    what=what,
                    at=(at or self.place.now()).replace(microsecond=0),
                    machine=self.name,
                    group=f"gpuinfra-{self.name}",
                    subscription="s",
                    region=REGION,
                    size=size,
                    spot=self.spot,
                    price_per_hour=price,
                    disk_per_month=DISK_PER_MONTH if self.disk_is_listed else None,
                    address_per_month=ADDRESS_PER_MONTH if self.address_is_listed else None,
                    lease_until=self.place.now() + timedelta(seconds=self.lease) if self.lease else None,
                )
            )

    def cost_history(self, log_since: datetime | None = None) -> CostHistory:
        now = self.place.now()
        since = log_since or now - timedelta(days=80)
        machine = self.place.ask("GET", self.id, **{"$expand": "instanceView"})
        events = self.events(since)
        self.has_failed_change = any((each.verb, each.status) == ("write", "Failed") for each in events)
        evidence = Evidence(
            now=now,
            events=events,
            log_since=since,
            entries=self.entries,
            machines=[machine] if machine else [],
            disks=self._disks() if machine and self.disk_is_listed else (),
            addresses=[self._address()] if machine and self.address_is_listed else (),
        )
        (found,) = evidence.histories(self.place.book)
        return found

    def recorded_history(self) -> CostHistory:
        """Return what a reader knows of this machine, deleted now, from its shared record alone."""
        now = self.place.now()
        since = now - timedelta(days=80)
        receipt = Receipt(
            self.name, OffProof.ABSENT, now, REGION, SIZES[0], self.spot, f"gpuinfra-{self.name}", deletes=True
        )
        end = entry_from_receipt(receipt, "s")
        assert end
        record = record_of(receipt, self.events(since), since, [*self.entries, end], "s")
        entries = entries_from_json(json.loads(json.dumps([each.as_json() for each in record])))
        (found,) = Evidence(now, entries=sorted(entries, key=lambda each: each.at)).histories(self.place.book)
        return found

    def events(self, since: datetime) -> list[Event]:
        text = f"eventTimestamp ge '{since:%Y-%m-%dT%H:%M:%S.%fZ}' and resourceUri eq '{self.id}'"
        path = "/subscriptions/s/providers/Microsoft.Insights/eventtypes/management/values"
        return read_events(self.place.ask("GET", path, **{"$filter": text})["value"])

    def _disks(self) -> list[dict[str, Any]]:
        found = self.place.ask("GET", f"{self.group}/providers/Microsoft.Compute/disks")["value"]
        return [{**each, "tags": {tags.NAME: self.name}} for each in found]

    def _address(self) -> dict[str, Any]:
        resource_id = f"{self.group}/providers/Microsoft.Network/publicIPAddresses/{self.name}-ip"
        return {"id": resource_id, "name": f"{self.name}-ip", "tags": {tags.NAME: self.name}}

    def bill(self) -> tuple[float, float]:
        """Return seconds and dollars of all machines of this name."""
        lives = self._lives()
        return sum(each["billedSeconds"] for each in lives), sum(each["costUsd"] for each in lives)

    def seconds_there(self) -> float:
        """How long machines of this name were there, on or off: their disks come and go with them."""
        found = 0.0
        for life in self._lives():
            first, last = life["timeline"][0], life["timeline"][-1]
            end = last["from"] if last["state"] == "deleted" else None
            until = datetime.fromisoformat(end) if end else self.place.now()
            found += (until - datetime.fromisoformat(first["from"])).total_seconds()
        return found

    def _lives(self) -> list[dict[str, Any]]:
        bill = self.place.cloud.meter.machines(self.place.cloud.now)
        return [each for each in bill if each["id"] == self.id.lower()]


numbers = st.integers(0, len(SIZES) - 1)
steps = st.one_of(
    st.tuples(st.sampled_from(["create", "resize_in_portal", "resize_by_up", "tag"]), numbers),
    st.sampled_from([("restart",), ("powerOff",), ("start",), ("deallocate",), ("simulateEviction",), ("delete",)]),
)
# Short enough that some operations overlap, and long enough that others do not.
pauses = st.sampled_from([1.0, 45.0, HOUR / 2, 7 * HOUR])


# Whether the disk and the address are listed, with their tags.
listed = st.tuples(st.booleans(), st.booleans())
BOTH = (True, True)


def live(life: Life, history: list[tuple[tuple[Any, ...], float]]) -> None:
    life.create(0)
    life.place.pass_time(HOUR)
    act(life, history)
    life.place.pass_time(HOUR)


def act(life: Life, history: list[tuple[tuple[Any, ...], float]]) -> None:
    for (verb, *values), pause in history:
        if hasattr(life, verb):
            getattr(life, verb)(*values)
        else:
            life.post(verb)
        life.place.pass_time(pause)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(steps, pauses), max_size=8), st.booleans(), st.booleans(), listed)
@example([(("resize_by_up", 1), HOUR)], True, False, BOTH)
@example([(("resize_in_portal", 1), HOUR), (("resize_in_portal", 0), HOUR)], True, False, BOTH)
@example([(("deallocate",), HOUR), (("resize_in_portal", 2), HOUR), (("start",), HOUR)], True, False, BOTH)
@example([(("deallocate",), 7 * HOUR)], False, False, (False, True))
@example([(("deallocate",), 7 * HOUR)], False, False, (True, False))
@example([(("simulateEviction",), HOUR), (("start",), HOUR)], False, True, BOTH)
@example([(("delete",), 45.0), (("create", 0), 1.0), (("delete",), 1.0)], True, False, BOTH)
@example([(("delete",), HOUR), (("create", 2), HOUR), (("delete",), HOUR)], False, False, BOTH)
@example([(("delete",), HOUR), (("create", 2), HOUR)], False, False, BOTH)
def test_cost_equals_the_bill(
    place: Place,
    history: list[tuple[tuple[Any, ...], float]],
    keeps_ledger: bool,
    spot: bool,
    is_listed: tuple[bool, bool],
) -> None:
    life = Life(place, f"m{next(place.numbers)}", keeps_ledger, spot, *is_listed)
    live(life, history)
    found, now = life.cost_history(), place.now()
    life.delete()  # frees the quota for the next one
    since = now - timedelta(days=80)
    amounts, (seconds, dollars) = found.amounts(since, now), life.bill()
    assert amounts.unpriced == 0
    assert amounts.seconds == pytest.approx(seconds, abs=0.01)
    is_compute_exact = found.compute_sure(since, now) is Certainty.EXACT
    # The log does not show what a failed change left behind.
    assert is_compute_exact or life.has_failed_change
    if is_compute_exact:
        assert amounts.compute == pytest.approx(dollars, abs=0.001)
    there = life.seconds_there() / MONTH
    if found.sure(since, now) is Certainty.EXACT:
        assert amounts.disk == pytest.approx(there * DISK_PER_MONTH, abs=0.01)
        assert amounts.address == pytest.approx(there * ADDRESS_PER_MONTH, abs=0.01)
    else:
        assert amounts.missing or life.has_failed_change
    place.pass_time(HOUR)
    recorded, (seconds, dollars) = life.recorded_history().amounts(since, place.now()), life.bill()
    (least, most), rounding = recorded.ranges["onSeconds"], 2 * len(found.pieces) + 2
    assert least - rounding <= seconds <= most + rounding
    if is_compute_exact:
        assert recorded.compute == pytest.approx(dollars, abs=0.01)


# Before the log begins, the machine is switched on only by `up`, which the ledger has.
known_steps = st.one_of(
    st.tuples(st.just("create"), numbers),
    st.sampled_from([("restart",), ("powerOff",), ("deallocate",), ("delete",)]),
)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(known_steps, pauses), max_size=4),
    st.lists(st.tuples(steps.filter(lambda step: step[0] != "resize_by_up"), pauses), max_size=4),
    st.sampled_from([None, 40 * HOUR]),
)
@example([(("deallocate",), 7 * HOUR)], [(("deallocate",), HOUR)], None)
@example([(("deallocate",), 7 * HOUR)], [(("start",), HOUR)], None)
@example([(("delete",), 7 * HOUR)], [(("create", 0), HOUR)], None)
@example([], [(("deallocate",), HOUR), (("start",), HOUR)], 40 * HOUR)
@example([(("deallocate",), 7 * HOUR)], [], 40 * HOUR)
def test_bill_is_within_the_range_where_the_log_does_not_reach_back(
    place: Place,
    before: list[tuple[tuple[Any, ...], float]],
    after: list[tuple[tuple[Any, ...], float]],
    lease: float | None,
) -> None:
    life = Life(place, f"m{next(place.numbers)}", keeps_ledger=True, lease=lease)
    live(life, before)
    place.pass_time(HOUR)
    log_since = place.now()
    act(life, after)
    place.pass_time(HOUR)
    found, now = life.cost_history(log_since), place.now()
    life.delete()
    amounts, (seconds, _) = found.amounts(now - timedelta(days=80), now), life.bill()
    least, most = amounts.ranges["onSeconds"]
    # The ledger has the time of the request, whole seconds before the machine is on.
    assert least - 600 <= seconds <= most + 0.01
    if most - least > 1:
        assert found.compute_sure(now - timedelta(days=80), now) is Certainty.ESTIMATED
