"""The sandbox's own endpoints: who may ask, what they take, what they do."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.faults import NAMES
from gpuinfra.sandbox.running import Client, Description, RefusedError, UnreachableError, from_json
from tests.integration.sandbox.machine_help import Place
from tests.integration.sandbox.servers import Sandbox, Servers

VERSION = "?api-version=2024-11-01"
READS_LEFT = "x-ms-ratelimit-remaining-subscription-reads"


@pytest.fixture(scope="module")
def untouched(servers: Servers) -> Iterator[Sandbox]:
    """One sandbox for all the tests that change nothing in it."""
    with servers.lend() as lent:
        yield lent


@pytest.fixture
def asker(untouched: Sandbox) -> Client:
    return client_of(untouched)


@pytest.fixture
def client(sandbox: Sandbox) -> Client:
    return client_of(sandbox)


def client_of(sandbox: Sandbox) -> Client:
    return Client(sandbox.folder, description_of(sandbox))


def description_of(sandbox: Sandbox) -> Description:
    return from_json({**sandbox.server.describe(), "started": "2026-01-01T00:00:00+00:00"})


def refusal(client: Client, path: str, payload: dict[str, Any]) -> str:
    with pytest.raises(RefusedError) as caught:
        client.post(path, payload)
    assert caught.value.status == 400
    return str(caught.value)


def test_control_endpoints_require_the_secret(untouched: Sandbox) -> None:
    for headers in ({}, {"x-sandbox-secret": "guess"}, {"x-sandbox-secret": "ü"}):
        status, _, body = untouched.http("GET", "/_sandbox/credentials", token=True, headers=headers)
        assert (status, body["error"]["code"]) == (401, "SecretRequired")
    assert (untouched.folder / "secret").stat().st_mode & 0o777 == 0o600


def test_client_names_the_address_that_does_not_answer(untouched: Sandbox) -> None:
    elsewhere = from_json({**description_of(untouched).as_json(), "port": 1})
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1 does not answer"):
        Client(untouched.folder, elsewhere).get("status")


def test_unknown_endpoint_lists_the_known_ones(asker: Client) -> None:
    with pytest.raises(RefusedError, match="POST clok; there are: GET status") as caught:
        asker.post("clok", {})
    assert caught.value.status == 404


@pytest.mark.parametrize("content", [b"[]", b"{", b"null", b"\xff", b"[" * 100_000])
def test_body_must_be_an_object(untouched: Sandbox, content: bytes) -> None:
    headers = {"x-sandbox-secret": untouched.server.secret}
    status, _, body = untouched.http("POST", "/_sandbox/clock", content, token=False, headers=headers)
    assert (status, body["error"]["code"]) == (400, "BadRequest")


def test_status_counts_resources_and_requests(sandbox: Sandbox, client: Client) -> None:
    before = client.get("status")
    assert (before["profile"], before["speed"]) == ("instant", 1.0)
    assert [before[name] for name in ("resources", "machines", "requests", "faults")] == [0, 0, 0, 0]
    sandbox.resource.resource_groups.create_or_update("demo", {"location": "eastus"})
    client.post("faults", {"name": "Conflict", "resource": "other"})
    after = client.get("status")
    assert [after[name] for name in ("resources", "machines", "requests", "faults")] == [1, 0, 1, 1]


def test_log_has_every_request_once(sandbox: Sandbox, client: Client) -> None:
    groups = sandbox.resource.resource_groups
    groups.create_or_update("demo", {"location": "eastus"})
    groups.get("demo")
    first, second = client.get("log")["requests"]
    assert (first["method"], first["status"], second["method"], second["status"]) == ("PUT", 201, "GET", 200)
    assert first["path"].endswith("/resourcegroups/demo")
    assert first["start"] <= first["end"] <= second["start"]
    assert client.get(f"log?after={first['number']}")["requests"] == [second]
    assert "secret" not in json.dumps([first, second]).lower()


def test_log_has_requests_for_a_vm(sandbox: Sandbox, client: Client) -> None:
    place = Place(sandbox)
    place.make()
    after = client.get("log")["requests"][-1]["number"]
    for action in ("deallocate", "start", "powerOff"):
        assert sandbox.http("POST", place.path("m", f"/{action}"))[0] == 202
    found = [(each["method"], each["path"], each["status"]) for each in client.get(f"log?after={after}")["requests"]]
    assert found == [("POST", f"{place.id('m')}/{action}", 202) for action in ("deallocate", "start", "powerOff")]


@pytest.mark.parametrize("after", ["x", "-1", "1.5", "9" * 30, "%C2%B2"])
@pytest.mark.parametrize("path", ["log", "operations"])
def test_logs_can_start_after_a_number(asker: Client, path: str, after: str) -> None:
    with pytest.raises(RefusedError, match="after must be the number of an entry"):
        asker.get(f"{path}?after={after}")


def test_operations_are_logged_with_start_and_end(sandbox: Sandbox, client: Client) -> None:
    place = Place(sandbox)
    place.make()
    before = client.get("operations")["operations"]
    # Interfaces are made at once.
    assert [each["action"] for each in before] == ["virtualNetworks/write", "virtualMachines/write"]
    after = before[-1]["number"]
    client.post("profile", {"profile": "realistic"})
    sandbox.http("POST", place.path("m", "/deallocate"))
    (running,) = client.get(f"operations?after={after}")["operations"]
    assert running == {
        "number": after + 1,
        "id": running["id"],
        "action": "virtualMachines/deallocate",
        "resource": place.id("m"),
        "location": "eastus",
        "status": "InProgress",
        "start": running["start"],
        "end": None,
    }
    place.advance(3600)
    (ended,) = client.get(f"operations?after={after}")["operations"]
    assert {**ended, "end": None} == {**running, "status": "Succeeded"}
    seconds = (datetime.fromisoformat(ended["end"]) - datetime.fromisoformat(ended["start"])).total_seconds()
    assert 5 < seconds < 60, "it ended when it was due, not when a client polled"
    request = client.get("log")["requests"][-1]
    assert request["path"].endswith("/deallocate")
    assert request["start"] <= ended["start"] <= request["end"], "both logs have one clock"


def test_failed_operation_has_its_reason(sandbox: Sandbox, client: Client) -> None:
    place = Place(sandbox)
    place.fault("AllocationFailed", type="virtualMachines")
    sandbox.http("PUT", place.path("m"), place.body("m"))
    failed = client.get("operations")["operations"][-1]
    assert (failed["action"], failed["status"]) == ("virtualMachines/write", "Failed")
    assert failed["error"]["code"] == "AllocationFailed"


def test_synchronous_requests_are_not_operations_and_reset_clears_operations(sandbox: Sandbox, client: Client) -> None:
    groups = sandbox.resource.resource_groups
    groups.create_or_update("demo", {"location": "eastus"})
    assert client.get("operations") == {"schemaVersion": 1, "operations": []}
    groups.begin_delete("demo").result()
    assert [each["action"] for each in client.get("operations")["operations"]] == ["resourceGroups/delete"]
    client.post("reset", {})
    assert client.get("operations")["operations"] == []


def test_clock_can_be_set(client: Client) -> None:
    before = client.get("clock")
    stepped = client.post("clock", {"advance": 5 * 3600})
    assert 5 * 3600 <= stepped["now"] - before["now"] < 5 * 3600 + 30
    assert datetime.fromisoformat(stepped["time"]) == pytest.approx(
        datetime.fromtimestamp(stepped["now"], UTC), abs=timedelta(milliseconds=1)
    )
    assert client.post("clock", {"speed": 3600})["speed"] == 3600
    client.post("clock", {"speed": 0.5})
    assert client.get("clock")["speed"] == 0.5


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ({"speed": 0}, "speed must be more than 0"),
        ({"speed": -1}, "speed must be more than 0"),
        ({"speed": 1e9}, "at most 100000"),
        ({"speed": float("nan")}, "speed must be"),
        ({"speed": True}, "speed must be a number"),
        ({"speed": "60"}, "speed must be a number"),
        ({"advance": -1}, "time goes forward only"),
        ({"advance": 1e12}, "ten years at most"),
        ({"advance": float("inf")}, "advance must be a number"),
        ({"advance": 10**400}, "advance must be a number"),
        ({"advance": None}, "advance must be a number"),
        ({"pace": 2}, "no such field: 'pace'; there are: speed, advance"),
        ({"speed": 5, "advance": -1}, "time goes forward only"),
    ],
)
def test_invalid_clock_setting_is_refused(asker: Client, payload: dict[str, Any], says: str) -> None:
    before = asker.get("clock")
    assert says in refusal(asker, "clock", payload)
    after = asker.get("clock")
    assert after["speed"] == before["speed"]
    assert after["now"] - before["now"] < 10


def test_clock_cannot_pass_the_year_2200(client: Client) -> None:
    for _ in range(17):
        client.post("clock", {"advance": 3660 * 86_400})
    assert "2200" in refusal(client, "clock", {"advance": 3660 * 86_400})


def test_profile_is_instant_or_realistic(sandbox: Sandbox, client: Client) -> None:
    assert client.post("profile", {"profile": "realistic"}) == {"profile": "realistic"}
    for wrong in ("fast", None, 3, ["instant"]):
        assert "it can be: instant, realistic" in refusal(client, "profile", {"profile": wrong})
    assert client.get("status")["profile"] == "realistic"


def test_quota_limit_is_stored_and_listed(sandbox: Sandbox, client: Client) -> None:
    client.post("quota", {"region": "East US", "family": "CORES", "limit": 7})
    client.post("quota", {"region": "eastus", "family": "lowPriorityCores", "limit": 0})
    kept = {"eastus": {"cores": 7, "lowPriorityCores": 0}}
    assert client.get("quota") == {"limits": kept}
    assert sandbox.server.cloud.store.setting("quota-limits") == kept
    listed = {usage.name.value: usage.limit for usage in sandbox.compute.usage.list("eastus")}
    assert listed["cores"] == 7


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"region": "moon"}, "no region"),
        ({"region": None}, "no region"),
        ({"family": "fast"}, "it can be: "),
        ({"limit": -1}, "whole number from 0"),
        ({"limit": 1.5}, "whole number from 0"),
        ({"limit": True}, "whole number from 0"),
        ({"size": 1}, "no such field"),
    ],
)
def test_invalid_quota_limit_is_refused(asker: Client, change: dict[str, Any], says: str) -> None:
    assert says in refusal(asker, "quota", {"region": "eastus", "family": "cores", "limit": 1, **change})
    assert asker.get("quota") == {"limits": {}}


def test_faults_are_listed_and_cleared(client: Client) -> None:
    fault = client.post("faults", {"name": "Conflict", "method": "put", "region": "East US", "retryAfter": 3})
    assert fault == {
        "name": "Conflict",
        "method": "PUT",
        "region": "eastus",
        "retryAfter": 3,
        "count": 1,
        "id": fault["id"],
    }
    assert client.get("faults") == {"faults": [fault]}
    assert client.delete("faults") == {"faults": []}
    assert client.get("faults") == {"faults": []}


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({}, "it can be: SkuNotAvailable"),
        ({"name": "conflict"}, "it can be: SkuNotAvailable"),
        ({"name": ["Conflict"]}, "it can be: SkuNotAvailable"),
        ({"name": "Conflict", "when": "now"}, "no such field: 'when'; there are: name, method"),
        ({"name": "Conflict", "method": "FETCH"}, "it can be: GET, HEAD"),
        ({"name": "Conflict", "method": 5}, "it can be: GET, HEAD"),
        ({"name": "Conflict", "type": ""}, "type must be a text"),
        ({"name": "Conflict", "resource": 7}, "resource must be a text"),
        ({"name": "Conflict", "message": "x" * 2000}, "message must be a text"),
        ({"name": "Conflict", "region": "moon"}, "no region"),
        ({"name": "Conflict", "count": -1}, "count must be a whole number"),
        ({"name": "Conflict", "count": 1.5}, "count must be a whole number"),
        ({"name": "Conflict", "count": True}, "count must be a whole number"),
        ({"name": "Conflict", "retryAfter": "soon"}, "retryAfter must be a whole number"),
        ({"name": "Conflict", "operation": 1}, "operation must be true or false"),
        ({"name": "Conflict", "seconds": 5}, "seconds goes with slow"),
        ({"name": "slow", "seconds": 0}, "seconds must be more than 0"),
        ({"name": "slow", "seconds": 1e9}, "at most 86400"),
        ({"name": "slow", "message": "x"}, "message goes with an error"),
        ({"name": "drop-after", "operation": True}, "operation goes with"),
        ({"name": "AllocationFailed", "retryAfter": 1}, "retryAfter goes with"),
        ({"name": "evict"}, "evict needs resource"),
        ({"name": "Conflict", "skip": -1}, "skip must be a whole number"),
        ({"name": "Conflict", "skip": "2"}, "skip must be a whole number"),
        ({"name": "no-boot", "skip": 1}, "skip goes with a fault of requests or operations"),
        ({"name": "read-only", "skip": 1}, "skip goes with a fault of requests or operations"),
        ({"name": "hold-after", "seconds": 5}, "seconds goes with slow"),
        ({"name": "hold-after", "operation": True}, "operation goes with"),
        ({"name": "Conflict", "held": True}, "no such field: 'held'"),
        ({"name": "read-only", "resource": "m"}, "resource does not go with read-only"),
        ({"name": "read-only", "type": "disks"}, "type does not go with read-only"),
    ],
)
def test_invalid_fault_is_refused(asker: Client, fault: dict[str, Any], says: str) -> None:
    assert says in refusal(asker, "faults", fault)
    assert asker.get("faults") == {"faults": []}


def test_every_fault_can_be_armed(client: Client) -> None:
    for name in NAMES:
        if name != "evict":
            client.post("faults", {"name": name} if name == "read-only" else {"name": name, "resource": "nothing"})
    assert len(client.get("faults")["faults"]) == len(NAMES) - 1


def test_eviction_requires_an_existing_vm(asker: Client) -> None:
    assert "no machine is called 'ghost'" in refusal(asker, "faults", {"name": "evict", "resource": "ghost"})


def test_reset_keeps_only_the_identity(sandbox: Sandbox, client: Client) -> None:
    credentials = client.get("credentials")
    client.post("clock", {"advance": 3600, "speed": 10})
    client.post("profile", {"profile": "realistic"})
    client.post("quota", {"region": "eastus", "family": "cores", "limit": 7})
    sandbox.resource.resource_groups.create_or_update("demo", {"location": "eastus"})
    client.post("faults", {"name": "Conflict"})
    sandbox.inside(lambda cloud: cloud.meter.change("/vm", "vm", "running", 1.0, cloud.now))
    assert len(client.get("bill")["machines"]) == 1
    before = client.get("clock")
    after = client.post("reset", {})
    assert [after[name] for name in ("resources", "machines", "requests", "faults")] == [0, 0, 0, 0]
    assert client.get("bill") == {"schemaVersion": 1, "machines": []}
    assert client.get("quota") == {"limits": {}}
    assert client.get("credentials") == credentials
    assert (after["profile"], after["speed"]) == ("realistic", 1)
    assert after["now"] < before["now"], "an empty sandbox starts at the computer's time again"
    assert [group.name for group in sandbox.resource.resource_groups.list()] == []
    assert client.post("reset", {"now": 1_000_000_000})["time"].startswith("2001-09-09T01:46:40"), "or at any time"
    assert "now must be seconds since 1970" in refusal(client, "reset", {"now": -1})


def test_reset_clears_terms_registrations_and_throttling(sandbox: Sandbox, client: Client) -> None:
    root = f"/subscriptions/{sandbox.subscription}/providers"
    plan = "publishers/fortinet/offers/fortinet_fortigate-vm_v5/plans/fortinet_fg-vm_payg"
    terms = f"{root}/Microsoft.MarketplaceOrdering/offerTypes/virtualmachine/{plan}/agreements/current{VERSION}"
    provider = f"{root}/Microsoft.DevTestLab{VERSION}"
    _, headers, before = sandbox.http("GET", terms)
    _, _, registered = sandbox.http("GET", provider)
    accepted = {"properties": {**before["properties"], "accepted": True}}
    assert sandbox.http("PUT", terms, accepted)[2]["properties"]["accepted"]
    assert sandbox.http("POST", f"{root}/Microsoft.DevTestLab/unregister{VERSION}")[0] == 200
    client.post("profile", {"profile": "realistic"})
    durations = sandbox.inside(drawn)
    client.post("reset", {})
    _, first, body = sandbox.http("GET", terms)
    assert body["properties"]["accepted"] is False
    assert sandbox.http("GET", provider)[2]["registrationState"] == registered["registrationState"]
    assert (
        first["x-ms-ratelimit-remaining-subscription-reads"] == headers["x-ms-ratelimit-remaining-subscription-reads"]
    )
    assert sandbox.inside(drawn) == durations


def drawn(cloud: Cloud) -> list[float]:
    return [cloud.latency.seconds("vm-create") for _ in range(3)]


def test_bill_has_the_documented_shape(sandbox: Sandbox, client: Client) -> None:
    sandbox.inside(lambda cloud: cloud.meter.change("/vm", "vm", "running", 2.0, cloud.now))
    client.post("clock", {"advance": 3600})
    sandbox.inside(lambda cloud: cloud.meter.change("/vm", "vm", "deallocated", 2.0, cloud.now))
    client.post("clock", {"advance": 3600})
    (machine,) = client.get("bill")["machines"]
    assert (machine["name"], machine["powerState"]) == ("vm", "deallocated")
    assert 3600 <= machine["billedSeconds"] < 3630
    assert machine["costUsd"] == pytest.approx(machine["billedSeconds"] / 1800, abs=1e-4)
    assert [entry["state"] for entry in machine["timeline"]] == ["running", "deallocated"]
    running, deallocated = machine["timeline"]
    assert running["to"] == deallocated["from"]
    assert deallocated["to"] is None
