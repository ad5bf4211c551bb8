"""Our machines, from Azure's list."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest

from gpuinfra.diagnostics import Span
from gpuinfra.models.machine import Machine, ScheduledChange
from gpuinfra.models.sizes import Rate
from gpuinfra.models.spec import Spec
from gpuinfra.parse.spec import LocatedSpec
from gpuinfra.provision import tags
from gpuinfra.provision.azure.clients import Clients
from gpuinfra.provision.azure.fleet import list_machines
from gpuinfra.provision.fleet import machines, sizes
from gpuinfra.provision.market import Prices

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)  # a Monday
SIZE = "Standard_NC4as_T4_v3"
PRICES = Prices({(SIZE, "eastus"): Rate(0.526, 0.158)})


def spec(**fields: Any) -> Spec:
    plain = {"apiVersion": "gpuinfra/v1", "name": "my-dsvm", "regions": ("eastus",), "sizes": (SIZE,), **fields}
    return Spec.model_validate(plain)


def row(power: str = "running", name: str = "my-dsvm", size: str = SIZE, **own: Any) -> dict[str, Any]:
    marks = {
        tags.NAME: name,
        tags.ON_SINCE: "2026-11-16T10:00:00Z",
        tags.LEASE_UNTIL: "2026-11-16T14:00:00Z",
        tags.DIGEST: spec().digest(),
        **own.pop("tags", {}),
    }
    statuses = [{"code": "ProvisioningState/succeeded", "time": "2026-11-16T09:00:00+00:00"}]
    if power:
        statuses.append({"code": f"PowerState/{power}"})
    properties = {
        "hardwareProfile": {"vmSize": size},
        "provisioningState": "Succeeded",
        "instanceView": {"statuses": statuses},
        **own.pop("properties", {}),
    }
    path = f"/subscriptions/s/resourceGroups/gpuinfra-{name}/providers/Microsoft.Compute/virtualMachines/{name}"
    return {"id": path, "name": name, "location": "eastus", "tags": marks, "properties": properties, **own}


def one(body: dict[str, Any], wanted: Spec | None = None, now: datetime = NOW) -> Machine:
    located = [LocatedSpec(wanted, Span("gpu.yaml", 2, 7, 2, 14, ""))] if wanted else []
    (found,) = machines([body], located, now, PRICES)
    return found


def test_machine_matches_its_spec() -> None:
    assert one(row(), spec()) == Machine(
        name="my-dsvm",
        power_state="running",
        provisioning_state="Succeeded",
        region="eastus",
        size=SIZE,
        group="gpuinfra-my-dsvm",
        since=datetime(2026, 11, 16, 10, tzinfo=UTC),
        price_per_hour=0.526,
        lease_until=datetime(2026, 11, 16, 14, tzinfo=UTC),
        next_change=ScheduledChange(datetime(2026, 11, 16, 14, tzinfo=UTC), "deallocated", "lease"),
        spec_file="gpu.yaml",
    )


def test_deallocated_machine_costs_nothing() -> None:
    found = one(row("deallocated"), spec())
    assert found.since == datetime(2026, 11, 16, 9, tzinfo=UTC)
    assert found.next_change is None
    assert found.drift == ()
    assert found.cost_so_far(NOW) == 0


def test_machine_with_unreadable_tags_is_listed() -> None:
    bare = row("", properties={"instanceView": {}, "hardwareProfile": {"vmSize": "Standard_Odd"}}, tags={}, zones=["2"])
    bare["tags"] = {tags.NAME.upper(): "my-dsvm", tags.ON_SINCE: "yesterday", tags.HOURS: "Mars/Base always"}
    found = one(bare)
    assert (found.power_state, found.since, found.lease_until, found.zone) == ("unknown", None, None, "2")
    assert (found.price_per_hour, found.drift, found.spec_file) == (None, ("it has no lease",), None)


def test_spot_price_applies_and_case_is_ignored() -> None:
    odd = row(size=SIZE.upper(), location="East US", properties={"priority": "Spot"})
    found = one(odd, spec())
    assert (found.spot, found.price_per_hour, found.size, found.drift) == (True, 0.158, SIZE, ())
    assert sizes([odd, row()]) == (SIZE,)


@pytest.mark.parametrize(
    ("body", "fields", "drift"),
    [
        (row(tags={tags.DIGEST: "sha256:0"}), {}, ["spec changed since up"]),
        (row(), {"power": "deallocated"}, ["should be off", "spec changed since up"]),
        (row("deallocating"), {"power": "deallocated"}, ["spec changed since up"]),
        (row("deallocated"), {"power": "deallocated"}, ["spec changed since up"]),
        (row(tags={tags.LEASE_UNTIL: "2026-11-16T11:59:00Z"}), {}, ["lease is over"]),
        (row("deallocated", tags={tags.LEASE_UNTIL: "2026-11-16T11:59:00Z"}), {}, []),
        (
            row(tags={tags.TERMS: "lease=4h idle=20m cap=1h59m", tags.LEASE_UNTIL: "2026-11-16T11:59:00Z"}),
            {},
            ["cost cap is reached"],
        ),
        (row("stopped", tags={tags.LEASE_UNTIL: ""}), {}, ["stopped, but billed", "it has no lease"]),
        (row(tags={tags.HOURS: "UTC mon 13:00-14:00"}), {}, []),  # the lease keeps it on
        (row("stopped"), {}, ["stopped, but billed"]),
        (row("deallocated", size="Standard_NC8as_T4_v3"), {}, ["size Standard_NC8as_T4_v3 is not in the spec"]),
        (row("deallocated", location="westus2"), {}, ["region westus2 is not in the spec"]),
    ],
)
def test_drift_is_listed(body: dict[str, Any], fields: dict[str, Any], drift: list[str]) -> None:
    assert list(one(body, spec(**fields)).drift) == drift


def test_drift_without_a_spec_is_listed() -> None:
    failed = row("deallocated")
    failed["properties"]["provisioningState"] = "Failed"
    assert one(failed).drift == ("provisioning failed",)


def test_zone_outside_the_spec_is_drift() -> None:
    wanted = spec(zones=("1",))
    found = one(row("deallocated", zones=["2"], tags={tags.DIGEST: wanted.digest()}), wanted)
    assert found.drift == ("zone 2 is not in the spec",)


@pytest.mark.parametrize(
    ("power", "lease", "hours", "change"),
    [
        ("running", "14:00", "13:00", ("14:00", "deallocated", "lease")),  # the lease lasts beyond the hours
        ("running", "14:00", "19:00", ("14:00", "deallocated", "lease")),
        ("running", "19:00", "19:00", ("19:00", "deallocated", "hours")),
        ("running", "19:00", None, ("19:00", "deallocated", "lease")),
        ("stopped", "20:00", None, ("20:00", "deallocated", "cost cap")),
        ("running", "11:00", "19:00", None),  # it should be off already
        ("running", "11:00", None, None),
        ("deallocated", "14:00", "19:00", None),
        ("deallocated", "14:00", None, None),
    ],
)
def test_next_change_is_the_earliest(
    power: str, lease: str, hours: str | None, change: tuple[str, str, str] | None
) -> None:
    marks = {tags.LEASE_UNTIL: f"2026-11-16T{lease}:00Z", tags.TERMS: "lease=4h idle=20m cap=10h"}
    if hours:
        marks[tags.HOURS] = f"UTC daily 08:00-{hours}"
    expected = change and ScheduledChange(datetime.fromisoformat(f"2026-11-16T{change[0]}:00Z"), *change[1:])
    assert one(row(power, tags=marks)).next_change == expected


def test_hours_start_a_machine() -> None:
    found = one(row("deallocated", tags={tags.HOURS: "UTC daily 08:00-19:00"}), now=NOW + timedelta(hours=8))
    assert found.next_change == ScheduledChange(datetime(2026, 11, 17, 8, tzinfo=UTC), "running", "hours")


@pytest.mark.parametrize(
    ("digest", "tag", "why"),
    [
        (None, "", "hours are over"),  # too long for a tag
        (None, "UTC daily 08:00-10:00", "hours are over"),
        ("sha256:0", "UTC daily 08:00-10:00", "lease is over"),  # the spec does not apply yet
        ("sha256:0", "", "hours are over"),
    ],
)
def test_changed_hours_of_the_spec_are_drift(digest: str | None, tag: str, why: str) -> None:
    wanted = spec(lifecycle={"hours": {"timezone": "UTC", "on": "daily 08:00-11:00"}})
    marks = {tags.DIGEST: digest or wanted.digest(), tags.HOURS: tag, tags.LEASE_UNTIL: "2026-11-16T11:00:00Z"}
    assert one(row(tags=marks), wanted).drift[0] == why


def test_machines_are_sorted_by_name() -> None:
    found = machines([row(name="b"), row(name="A"), row(name="c")], [], NOW, PRICES)
    assert [machine.name for machine in found] == ["A", "b", "c"]


class ListedFleet:
    """A subscription whose lists of statuses have the fields in `kept`, with two machines per page."""

    def __init__(self, rows: list[dict[str, Any]], kept: set[str], properties: set[str]) -> None:
        self.rows, self.kept, self.properties = rows, kept, properties
        self.calls: list[str] = []

    def send_request(self, request: Any) -> Any:
        query = parse_qs(urlsplit(request.url).query)
        status_only = query.get("statusOnly", ["false"])[0]
        first = int(query.get("skip", ["0"])[0])
        if not first:
            self.calls.append(status_only)
        page: dict[str, Any] = {"value": [self._shown(each, status_only) for each in self.rows[first : first + 2]]}
        if first + 2 < len(self.rows):
            page["nextLink"] = f"https://localhost/machines?statusOnly={status_only}&skip={first + 2}"
        return SimpleNamespace(status_code=200, content=b"{}", json=lambda: page)

    def _shown(self, body: dict[str, Any], status_only: str) -> dict[str, Any]:
        properties = body["properties"]
        if status_only == "false":
            return {**body, "properties": {key: properties[key] for key in properties if key != "instanceView"}}
        lean = {key: value for key, value in properties.items() if key in self.properties}
        kept = {key: value for key, value in body.items() if key in self.kept}
        return {**kept, "id": body["id"].upper(), "properties": lean}

    def clients(self) -> Clients:
        return cast("Clients", SimpleNamespace(access=SimpleNamespace(subscription="s"), resource=self))


@pytest.mark.parametrize(
    ("kept", "properties", "calls"),
    [
        ({"id", "name", "location", "tags"}, {"hardwareProfile", "provisioningState", "instanceView"}, ["true"]),
        ({"id", "name", "location"}, {"hardwareProfile", "instanceView"}, ["true", "false"]),
        ({"id", "name", "location", "tags"}, {"instanceView"}, ["true", "false"]),
        ({"id"}, {"instanceView"}, ["true", "false"]),
    ],
)
def test_list_with_only_statuses_is_completed(kept: set[str], properties: set[str], calls: list[str]) -> None:
    foreign = row(name="theirs")
    foreign["tags"] = {"owner": "them"}
    listing = ListedFleet([foreign, foreign, row()], kept, properties)
    (found,) = list_machines(listing.clients())
    expected = row() if len(calls) == 2 else {**row(), "id": row()["id"].upper()}
    assert replace(one(found), group="") == replace(one(expected), group="")
    assert listing.calls == calls


def test_empty_list_takes_one_call() -> None:
    listing = ListedFleet([], set(), set())
    assert list_machines(listing.clients()) == []
    assert listing.calls == ["true"]
