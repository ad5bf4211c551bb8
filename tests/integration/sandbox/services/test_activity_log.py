"""The activity log: what happened to VMs, who caused it, and the outcome."""

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import pytest

from gpuinfra.sandbox.services import activity_log
from tests.integration.sandbox.machine_help import Place
from tests.integration.sandbox.servers import Sandbox

VALUES = "/subscriptions/{}/providers/Microsoft.Insights/eventtypes/management/values?api-version=2015-04-01&$filter={}"


@pytest.fixture
def place(server: Sandbox) -> Place:
    return Place(server)


def now(sandbox: Sandbox) -> datetime:
    return datetime.fromtimestamp(sandbox.control("GET", "status")["now"], UTC)


def stamp(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def ask(sandbox: Sandbox, text: str, more: str = "") -> tuple[int, Any]:
    status, _, body = sandbox.http("GET", VALUES.format(sandbox.subscription, quote(text)) + more)
    return status, body


def events(sandbox: Sandbox, condition: str = "", more: str = "", days: int = 1) -> list[dict[str, Any]]:
    """The oldest first."""
    since = f"eventTimestamp ge '{stamp(now(sandbox) - timedelta(days=days))}'"
    status, body = ask(sandbox, since + condition, more)
    assert status == 200, body
    return list(reversed(body["value"]))


def told(sandbox: Sandbox, name: str = "m") -> list[str]:
    """Return the log's entries for a VM, such as `start/action Started`."""
    found = events(sandbox, " and resourceProvider eq 'Microsoft.Compute'", days=80)
    mine = [each for each in found if each["resourceId"].endswith(f"/virtualMachines/{name}")]
    return [f"{each['operationName']['value'].partition('s/')[2]} {each['status']['value']}" for each in mine]


def test_log_shows_the_lifecycle_of_a_vm_with_azures_operation_names(sandbox: Sandbox, place: Place) -> None:
    place.make()
    place.machines.begin_deallocate(place.group, "m").result()
    place.machines.begin_start(place.group, "m").result()
    place.machines.begin_delete(place.group, "m").result()
    verbs = ["write", "deallocate/action", "start/action", "delete"]
    assert told(sandbox) == [f"{verb} {state}" for verb in verbs for state in ("Started", "Accepted", "Succeeded")]


def test_event_has_azures_fields(sandbox: Sandbox, place: Place) -> None:
    place.make()
    begun, accepted, ended = (
        event
        for event in events(sandbox)
        if event["operationName"]["value"] == "Microsoft.Compute/virtualMachines/write"
    )
    assert begun["resourceId"] == place.id("m")
    assert begun["resourceGroupName"] == place.group
    assert begun["resourceProviderName"]["value"] == "Microsoft.Compute"
    assert begun["eventName"]["value"] == "BeginRequest"
    assert {event["correlationId"] for event in (begun, accepted, ended)} == {begun["correlationId"]}
    assert {event["operationId"] for event in (begun, accepted, ended)} == {begun["operationId"]}
    assert len({event["eventDataId"] for event in (begun, accepted, ended)}) == 3
    assert begun["caller"]
    # It was not there before: the only word of the log for that.
    assert [event["subStatus"]["value"] for event in (begun, accepted, ended)] == ["", "Created", ""]
    timeline = {entry["state"]: entry["from"] for entry in place.bill()["timeline"]}
    assert datetime.fromisoformat(ended["eventTimestamp"]) == datetime.fromisoformat(timeline["running"])


def test_failed_operation_is_logged_with_its_reason(sandbox: Sandbox, place: Place) -> None:
    place.make()
    place.fault("InternalExecutionError", method="POST", operation=True)
    with pytest.raises(Exception, match="InternalExecutionError"):
        place.machines.begin_deallocate(place.group, "m").result()
    last = events(sandbox)[-1]
    assert (last["status"]["value"], last["level"]) == ("Failed", "Error")
    assert '"code": "InternalExecutionError"' in last["properties"]["statusMessage"]


def test_scheduled_shutdown_is_logged(sandbox: Sandbox, place: Place) -> None:
    place.make()
    due = now(sandbox) + timedelta(hours=1)
    body = {
        "location": "eastus",
        "properties": {
            "status": "Enabled",
            "taskType": "ComputeVmShutdownTask",
            "dailyRecurrence": {"time": f"{due:%H%M}"},
            "timeZoneId": "UTC",
            "targetResourceId": place.id("m"),
        },
    }
    group = f"/subscriptions/{sandbox.subscription}/resourceGroups/{place.group}"
    path = f"{group}/providers/Microsoft.DevTestLab/schedules/shutdown-computevm-m?api-version=2018-09-15"
    assert sandbox.http("PUT", path, body)[0] == 201
    place.advance(7200)
    assert told(sandbox)[-1] == "deallocate/action Succeeded"
    assert events(sandbox, " and resourceProvider eq 'Microsoft.Compute'")[-1]["caller"] == "Microsoft.DevTestLab"


@pytest.mark.parametrize(("policy", "verb"), [("Deallocate", "deallocate/action"), ("Delete", "delete")])
def test_eviction_is_logged(sandbox: Sandbox, place: Place, policy: str, verb: str) -> None:
    place.spot("s", policy)
    place.machines.simulate_eviction(place.group, "s")
    place.advance(60)
    assert told(sandbox, "s")[-1] == f"{verb} Succeeded"
    assert events(sandbox, " and resourceProvider eq 'Microsoft.Compute'")[-1]["caller"] == "Azure Spot"
    sandbox.control("POST", "reset", {})
    assert told(sandbox, "s") == []


def test_filter_selects_events(sandbox: Sandbox, place: Place) -> None:
    place.make()
    everything = events(sandbox)
    mine = events(sandbox, f" and resourceUri eq '{place.id('m').upper()}'")
    assert {event["resourceId"] for event in mine} == {place.id("m")}
    assert len(mine) == 3 < len(everything)
    assert len(events(sandbox, f" and resourceGroupName eq '{place.group}'")) == len(everything)
    assert events(sandbox, " and resourceProvider eq 'Microsoft.Storage'") == []
    assert events(sandbox, f" and eventTimestamp le '{stamp(now(sandbox) - timedelta(hours=1))}'") == []
    (first, *_) = events(sandbox, more="&$select=eventTimestamp,operationName")
    assert set(first) == {"eventTimestamp", "operationName"}


def test_filter_of_az_is_supported(sandbox: Sandbox, place: Place) -> None:
    place.make()
    bare = f"{now(sandbox) - timedelta(days=1):%Y-%m-%dT%H:%M:%S.%f}"
    status, body = ask(sandbox, f"eventTimestamp ge {bare} and eventChannels eq 'Admin, Operation'")
    assert (status, len(body["value"])) == (200, len(events(sandbox)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "start time"),
        ("eventTimestamp ge 'yesterday'", "not a time"),
        ("eventTimestamp ge '2020-01-01T00:00:00Z'", "90 days"),
        ("eventTimestamp gt '2026-01-01T00:00:00Z'", "invalid near"),
        ("status eq 'Succeeded'", "not supported"),
        ("resourceProvider eq 'a' and resourceGroupName eq 'b'", "not supported"),
    ],
)
def test_unsupported_filter_is_refused(sandbox: Sandbox, text: str, message: str) -> None:
    status, body = ask(sandbox, text)
    assert (status, body["error"]["code"]) == (400, "BadRequest")
    assert message in body["error"]["message"]


def test_log_is_paged(sandbox: Sandbox, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.make()
    everything = events(sandbox)
    monkeypatch.setattr(activity_log, "PAGE", 4)
    path = VALUES.format(sandbox.subscription, quote(f"eventTimestamp ge '{stamp(now(sandbox) - timedelta(days=1))}'"))
    found, pages = list[Any](), 0
    while path:
        _, _, body = sandbox.http("GET", path)
        found += body["value"]
        pages += 1
        path = body.get("nextLink", "").removeprefix(sandbox.endpoint)
    assert [event["eventDataId"] for event in reversed(found)] == [event["eventDataId"] for event in everything]
    assert pages == -(-len(everything) // 4)


def test_log_covers_ninety_days(sandbox: Sandbox, place: Place) -> None:
    place.make()
    place.advance(91 * 86_400)
    assert events(sandbox, days=89) == []
