"""The reaper with the real SDK against the embedded Azure, verified by its bill."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Kind
from gpuinfra.models.reap import ReapAction, ReapResult
from gpuinfra.models.receipt import OffProof
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.azure.clients import Clients, RequestLimits
from gpuinfra.provision.azure.cloud import AzureCloud
from gpuinfra.provision.azure.market import AzureMarket
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.reaping.decide import Rules
from gpuinfra.provision.reaping.reaper import Reaper
from gpuinfra.provision.tags import default_group, name_of
from gpuinfra.provision.task import Journal
from gpuinfra.provision.waiting import Deadline, Interrupt, Silent
from tests.integration.provision.conftest import access_to, close
from tests.integration.sandbox.machine_help import T4, Place
from tests.integration.sandbox.servers import Sandbox

GROUP, REPOSITORY = "demo", "0123abcd"


class World:
    """Our machines, foreign machines, and a reaper."""

    def __init__(self, server: Sandbox) -> None:
        self.server, self.place = server, Place(server)
        self._clients: list[Clients] = []

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.server.control("GET", "clock")["now"], UTC)

    def at(self, **length: float) -> str:
        """Return a time this far from now, in the format of tags."""
        return stamp(self.now + timedelta(**length)) or ""

    def machine(self, name: str, lease: float | None = 2, **marks: str) -> None:
        """Create a running machine with a lease of this many hours."""
        body = self.place.body_like_ours(name)
        body["tags"] = {tags.NAME: name, tags.ON_SINCE: self.at(hours=-1), "owner": "me"}
        body["tags"][tags.REPOSITORY] = REPOSITORY
        body["tags"] |= {f"gpuinfra:{key.replace('_', '-')}": value for key, value in marks.items()}
        body["tags"] |= {tags.LEASE_UNTIL: self.at(hours=lease)} if lease is not None else {}
        self.place.put(name, body)

    def put(self, path: str, body: dict[str, Any], group: str = GROUP) -> None:
        """Create a resource in a group, such as `Microsoft.Network/publicIPAddresses/a`."""
        version = {"Microsoft.DevTestLab": "2018-09-15", "Microsoft.Compute": "2024-03-02"}
        base = f"/subscriptions/{self.server.subscription}/resourceGroups/{group}/providers/{path}"
        query = version.get(path.split("/", maxsplit=1)[0], "2024-05-01")
        status, _, answer = self.server.http("PUT", f"{base}?api-version={query}", {"location": "eastus", **body})
        assert status in {200, 201, 202}, answer

    def power(self) -> dict[str, str]:
        """Return the power state of every machine, from the bill."""
        return {each["name"]: each["powerState"] for each in self.server.control("GET", "bill")["machines"]}

    def last_request(self) -> int:
        return int(self.server.control("GET", "log")["requests"][-1]["number"])

    def writes(self, after: int) -> list[str]:
        log = self.server.control("GET", f"log?after={after}")["requests"]
        writes = [each for each in log if each["method"] not in {"GET", "HEAD"} and "/oauth2/" not in each["path"]]
        return [f"{each['method']} {'/'.join(each['path'].split('/')[-2:])}" for each in writes]

    def reaper(self, rules: Rules | None = None, *, seconds: float = 60, **fields: Any) -> Reaper:
        deadline = Deadline.after(seconds)
        clients = Clients(access_to(self.server), RequestLimits(deadline, Silent()))
        self._clients.append(clients)
        return Reaper(
            cloud=AzureCloud(clients),
            market=AzureMarket(clients),
            rules=rules or Rules(),
            progress=Silent(),
            journal=lambda name: Journal(None, name, ""),
            deadline=deadline,
            **fields,
        )

    def reap(self, rules: Rules | None = None, **fields: Any) -> ReapResult:
        return self.reaper(rules, **fields).reap()

    def close(self) -> None:
        for clients in self._clients:
            close(clients)


@pytest.fixture
def world(server: Sandbox) -> Iterator[World]:
    made = World(server)
    yield made
    made.close()


def names(found: list[Any]) -> list[str]:
    return [each.verdict.name if hasattr(each, "verdict") else each.name for each in found]


def spec(name: str, **fields: Any) -> Spec:
    plain = {"apiVersion": "gpuinfra/v1", "name": name, "regions": ("eastus",), "sizes": (T4,), **fields}
    plain["resourceGroup"] = GROUP
    return Spec.model_validate(plain)


def test_reap_stops_for_every_cause_and_ignores_foreign_machines(world: World) -> None:
    world.machine("fine")
    world.machine("over", lease=0.1)
    world.machine("none", lease=None)
    world.machine("spent", terms="lease=4h idle=20m cap=30m")
    world.machine("unwanted")
    world.machine("dear", lease=0.1, protect="until friday")
    world.place.make("theirs")
    world.place.fault("OSProvisioningTimedOut", resource="failed", type="virtualMachines", operation=True)
    with pytest.raises(Exception, match="OSProvisioningTimedOut"):
        world.machine("failed")
    world.machine("stopped")
    world.place.machines.begin_power_off(GROUP, "stopped").result()
    world.place.advance(16 * 60)
    rules = Rules(repository=REPOSITORY, specs={f"{GROUP}/unwanted": spec("unwanted", power="deallocated")})

    before = world.last_request()
    dry = world.reap(rules, dry_run=True)
    causes = {each.verdict.name: each.verdict.cause for each in dry.stopped}
    assert causes == {
        "over": "lease is over",
        "none": "it has no lease",
        "spent": "cost cap is reached",
        "unwanted": "its spec says `power: deallocated`",
        "failed": "provisioning failed, but billed",
        "stopped": "stopped, but billed",
    }
    assert world.writes(before) == []

    found = world.reap(rules)
    assert {each.verdict.name: each.verdict.cause for each in found.stopped} == causes
    assert names(found.protected) == ["dear"]
    assert (found.failed, found.machines, found.simulated) == ([], 8, True)
    power = world.power()
    assert {name for name, state in power.items() if state == "deallocated"} == set(causes)
    assert power["theirs"] == power["fine"] == power["dear"] == "running"
    assert sorted(world.writes(before)) == sorted(f"POST {name}/deallocate" for name in causes)
    for each in found.stopped:
        assert each.receipt is not None
        assert each.receipt.verified is OffProof.DEALLOCATED
        assert each.receipt.cause == f"reap: {each.verdict.cause}"
        assert each.receipt.price_per_hour == 0.526
        assert each.receipt.residue[0].per_month

    before = world.last_request()
    again = world.reap(rules)
    assert again.did_nothing
    assert world.writes(before) == []


def test_receipt_of_reap_matches_the_bill(world: World) -> None:
    world.machine("over", lease=-0.1, on_since=world.at())
    world.place.advance(1800)
    (stopped,) = world.reap().stopped
    assert stopped.receipt is not None
    assert stopped.receipt.billed_seconds is not None
    assert abs(stopped.receipt.billed_seconds - world.place.bill("over")["billedSeconds"]) < 3


def test_reap_continues_after_a_machine_that_cannot_be_stopped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interrupt, "sleep", lambda *_: time.sleep(0.01))  # between attempts
    for name in ("first", "locked", "broken", "last"):
        world.machine(name, lease=-0.1)
    world.place.fault("ScopeLocked", method="POST", resource="locked", count=0)
    world.place.fault("InternalServerError", method="POST", resource="broken", count=0)
    found = world.reap(trouble_seconds=0.5)
    assert {failure.name: failure.code for failure in found.failed} == {
        "broken": "InternalServerError",
        "locked": "ScopeLocked",
    }
    assert names(found.stopped) == ["first", "last"]
    assert world.power() == {
        "first": "deallocated",
        "last": "deallocated",
        "locked": "running",
        "broken": "running",
    }
    world.server.control("DELETE", "faults")
    assert names(world.reap().stopped) == ["broken", "locked"]


def test_transient_failures_are_retried(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Interrupt, "sleep", lambda *_: time.sleep(0.01))  # between attempts
    for name in ("throttled", "failing", "busy", "refusing"):
        world.machine(name, lease=-0.1)
    world.place.fault("TooManyRequests", method="POST", resource="throttled", retryAfter=1)
    world.place.fault("ServiceUnavailable", method="POST", resource="refusing", count=3)
    world.place.fault("InternalExecutionError", method="POST", resource="failing", operation=True, count=3)
    world.place.fault("Conflict", method="POST", resource="busy", count=2)
    found = world.reap()
    assert (names(found.stopped), found.failed) == (["busy", "failing", "refusing", "throttled"], [])
    assert set(world.power().values()) == {"deallocated"}


def test_lease_renewed_during_reap_keeps_the_machine_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.machine("over", lease=-0.1)
    world.machine("renewed", lease=-0.1)
    reaper = world.reaper()
    listed: Callable[[], list[dict[str, Any]]] = reaper.cloud.fleet.machines

    def machines() -> list[dict[str, Any]]:
        rows = listed()
        world.machine("renewed", lease=1)
        return rows

    monkeypatch.setattr(reaper.cloud.fleet, "machines", machines)
    found = reaper.reap()
    assert names(found.stopped) == ["over"]
    assert found.notes == ["renewed is left on: it is in order by now"]
    assert world.power()["renewed"] == "running"


def test_reap_stops_machines_when_resources_cannot_be_listed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.machine("over", lease=-0.1)
    reaper = world.reaper()

    def parts() -> list[Any]:
        raise CloudError(Fault.DENIED, "AuthorizationFailed", "you may not")

    monkeypatch.setattr(reaper.cloud.fleet, "parts", parts)
    found = reaper.reap()
    assert [(failure.name, failure.code) for failure in found.failed] == [("orphans", "AuthorizationFailed")]
    assert names(found.stopped) == ["over"]


def test_machine_whose_spec_was_deleted_is_deleted_after_the_grace_period(world: World) -> None:
    world.machine("gone", lease=40)
    world.machine("kept", lease=40)
    world.server.control("POST", "clock", {"advance": 25 * 3600})
    rules = Rules(repository=REPOSITORY, deleted={f"{GROUP}/gone": world.now - timedelta(hours=25)})
    early = world.reap(replace(rules, grace=timedelta(hours=26)))
    assert early.did_nothing
    assert names(world.reap(rules).stopped) == ["gone"]
    off = world.reap(rules)
    assert off.did_nothing
    assert names(off.kept) == ["gone"]
    (ended,) = world.reap(replace(rules, deletes=True)).deleted
    assert ended.receipt is not None
    assert ended.receipt.verified is OffProof.ABSENT
    assert world.power() == {"gone": "deleted", "kept": "running"}
    assert world.reap(replace(rules, deletes=True)).did_nothing


# Orphans


def leave(world: World, name: str, mark: str | None = None, group: str | None = None) -> None:
    """Create what a machine leaves when it is deleted without its resources; in its default group, or in another."""
    group = group or default_group(name)
    world.server.resource.resource_groups.create_or_update(group, {"location": "eastus"})
    marks = {"tags": {tags.NAME if mark is None else mark: name}}
    address, disk = name_of(Kind.PUBLIC_IP, name), name_of(Kind.DISK, name)
    world.put(
        f"Microsoft.Network/publicIPAddresses/{address}",
        {**marks, "sku": {"name": "Standard"}, "properties": {"publicIPAllocationMethod": "Static"}},
        group,
    )
    base = f"/subscriptions/{world.server.subscription}/resourceGroups/{group}/providers"
    configuration = {
        "subnet": {"id": world.place.subnet},
        "publicIPAddress": {"id": f"{base}/Microsoft.Network/publicIPAddresses/{address}"},
    }
    world.put(
        f"Microsoft.Network/networkInterfaces/{name_of(Kind.NIC, name)}",
        {**marks, "properties": {"ipConfigurations": [{"name": "first", "properties": configuration}]}},
        group,
    )
    data = {"creationData": {"createOption": "Empty"}, "diskSizeGB": 128}
    sku = {"sku": {"name": "StandardSSD_LRS"}}
    world.put(f"Microsoft.Compute/disks/{disk}", {**marks, **sku, "properties": data}, group)
    schedule = {
        "status": "Enabled",
        "taskType": "ComputeVmShutdownTask",
        # Not before tomorrow: a schedule that fires changes its resource.
        "dailyRecurrence": {"time": f"{world.now - timedelta(minutes=5):%H%M}"},
        "timeZoneId": "UTC",
        "targetResourceId": f"{base}/Microsoft.Compute/virtualMachines/{name}",
    }
    stop = f"Microsoft.DevTestLab/schedules/{name_of(Kind.SHUTDOWN_SCHEDULE, name)}"
    world.put(stop, {**marks, "properties": schedule}, group)


def parts_of(world: World, name: str) -> set[str]:
    """Return the types of all resources that are named after a machine."""
    found = [(str(each.type).split("/")[-1], str(each.name)) for each in world.server.resource.resources.list()]
    return {kind for kind, each in found if each.startswith(f"{name}-") or each.endswith(f"-computevm-{name}")}


ALL = {"disks", "networkInterfaces", "publicIPAddresses", "schedules"}


def test_orphaned_resources_are_deleted(world: World) -> None:
    world.machine("busy", lease=9)
    leave(world, "lost")
    leave(world, "theirs", mark="owner")
    assert world.reap().orphans == []  # an `up` may be running
    world.place.advance(3700)
    dry = world.reap(dry_run=True)
    assert {each.ref.kind: each.action for each in dry.orphans} == {
        Kind.DISK: ReapAction.KEEP,
        Kind.PUBLIC_IP: ReapAction.DELETE,
        Kind.NIC: ReapAction.DELETE,
        Kind.SHUTDOWN_SCHEDULE: ReapAction.DELETE,
    }
    assert parts_of(world, "lost") == ALL

    found = world.reap()
    assert {each.ref.kind: each.removed for each in found.orphans} == {
        Kind.DISK: False,
        Kind.PUBLIC_IP: True,
        Kind.NIC: True,
        Kind.SHUTDOWN_SCHEDULE: True,
    }
    (disk,) = [each for each in found.orphans if each.ref.kind is Kind.DISK]
    assert disk.per_month == 9.6
    assert parts_of(world, "lost") == {"disks"}
    assert world.reap().did_nothing
    world.reap(Rules(deletes=True))
    assert parts_of(world, "lost") == set()
    assert parts_of(world, "theirs") == ALL
    assert world.power()["busy"] == "running"


def test_leftovers_outside_the_default_group_are_reported_and_kept(world: World) -> None:
    leave(world, "lost", group=GROUP)
    made_for = {"location": "eastus", "tags": {tags.NAME: "lost"}}
    world.server.resource.resource_groups.create_or_update(GROUP, made_for)
    world.place.advance(3700)
    found = world.reap(Rules(repository=REPOSITORY, specs={f"{GROUP}/lost": spec("lost")}, deletes=True))
    assert found.orphans == []
    assert len(found.left_alone) == len(ALL)
    assert parts_of(world, "lost") == ALL


def test_undeletable_resource_is_reported(world: World) -> None:
    leave(world, "lost")
    leave(world, "other")
    world.place.advance(3700)
    world.place.fault("ScopeLocked", method="DELETE", resource="lost-nic", count=0)
    found = world.reap()
    assert [(failure.name, failure.code) for failure in found.failed] == [("lost", "ScopeLocked")]
    assert parts_of(world, "other") == {"disks"}
    assert "networkInterfaces" in parts_of(world, "lost")


# Hours


def test_machine_is_started_once_for_its_hours(world: World) -> None:
    world.machine("early", lease=-0.1)
    world.place.machines.begin_deallocate(GROUP, "early").result()
    world.place.advance(7200)
    opens, ends = world.now - timedelta(hours=1), world.now + timedelta(hours=3)
    hours = {"timezone": "UTC", "on": f"daily {opens:%H:%M}-{ends:%H:%M}"}
    rules = Rules(
        repository=REPOSITORY, specs={f"{GROUP}/early": spec("early", lifecycle={"hours": hours})}, starts=True
    )
    end = ends.replace(second=0, microsecond=0)

    assert world.reap(replace(rules, starts=False)).did_nothing
    before = world.last_request()
    (started,) = world.reap(rules).started
    assert started.until == end
    assert world.writes(before) == [
        "PUT schedules/shutdown-computevm-early",
        "PATCH virtualMachines/early",
        "POST early/start",
    ]
    machine: Any = world.place.machines.get(GROUP, "early")
    assert machine.tags[tags.LEASE_UNTIL] == stamp(end)
    assert machine.tags["owner"] == "me"
    assert datetime.fromisoformat(machine.tags[tags.ON_SINCE]) > opens
    assert world.power()["early"] == "running"
    assert world.reap(rules).did_nothing

    world.place.machines.begin_deallocate(GROUP, "early").result()
    assert world.reap(rules).did_nothing, "a user switched it off on purpose"


def test_machine_without_a_schedule_is_not_started(world: World) -> None:
    world.machine("early", lease=-0.1)
    world.place.machines.begin_deallocate(GROUP, "early").result()
    world.place.advance(7200)
    opens, ends = world.now - timedelta(hours=1), world.now + timedelta(hours=3)
    hours = {"timezone": "UTC", "on": f"daily {opens:%H:%M}-{ends:%H:%M}"}
    rules = Rules(
        repository=REPOSITORY, specs={f"{GROUP}/early": spec("early", lifecycle={"hours": hours})}, starts=True
    )
    world.place.fault("ScopeLocked", method="PUT", type="schedules", count=0)
    found = world.reap(rules)
    assert [(failure.name, failure.action) for failure in found.failed] == [("early", "start")]
    assert world.power()["early"] == "deallocated"
