"""Shutdown schedules: their answers, when they fire, and when they do not."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from gpuinfra.sandbox.services.schedules import find_zone, next_time
from tests.integration.sandbox.machine_help import Place
from tests.integration.sandbox.recordings import DATA, shape
from tests.integration.sandbox.servers import Sandbox

API = "api-version=2018-09-15"
CHICAGO = ZoneInfo("America/Chicago")


class Schedules:
    """The shutdown of a machine called m."""

    def __init__(self, sandbox: Sandbox, group: str = "demo") -> None:
        self.sandbox = sandbox
        sandbox.resource.resource_groups.create_or_update(group, {"location": "eastus"})
        self.group = f"/subscriptions/{sandbox.subscription}/resourceGroups/{group}"
        self.machine = f"{self.group}/providers/Microsoft.Compute/virtualMachines/m"
        self.all = f"{self.group}/providers/Microsoft.DevTestLab/schedules"
        self.path = f"{self.all}/shutdown-computevm-m?{API}"

    def body(self, time: str = "1900", zone: str = "UTC", **properties: Any) -> dict[str, Any]:
        return {
            "location": "eastus",
            "properties": {
                "status": "Enabled",
                "taskType": "ComputeVmShutdownTask",
                "dailyRecurrence": {"time": time},
                "timeZoneId": zone,
                "targetResourceId": self.machine,
                **properties,
            },
        }

    def put(self, *arguments: str, **properties: Any) -> Any:
        status, headers, body = self.sandbox.http("PUT", self.path, self.body(*arguments, **properties))
        assert status == 201, body
        assert not {"location", "azure-asyncoperation"} & set(headers)
        return body

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self.sandbox.control("GET", "status")["now"], UTC)

    def go_to(self, moment: datetime) -> None:
        seconds = (moment - self.now).total_seconds()
        self.sandbox.control("POST", "clock", {"advance": seconds})

    def pending(self) -> int:
        connection = self.sandbox.server.cloud.store.connection
        return int(connection.execute("SELECT count(*) FROM events WHERE kind = 'schedule-fire'").fetchone()[0])


def power(sandbox: Sandbox) -> str:
    return str(sandbox.control("GET", "bill")["machines"][0]["powerState"])


def timeline(sandbox: Sandbox) -> list[tuple[str, str]]:
    machine = sandbox.control("GET", "bill")["machines"][0]
    return [(entry["state"], entry["from"]) for entry in machine["timeline"]]


def test_schedule_answer_matches_azure(sandbox: Sandbox) -> None:
    file = DATA / "arm-golden" / "devtestlab_schedule_put_201.json"
    if not file.exists():
        pytest.skip("the recorded traffic is not here")
    schedules = Schedules(sandbox)
    recorded = json.loads(file.read_text())
    request = {**recorded["request_body"]}
    request["properties"]["targetResourceId"] = schedules.machine
    for _ in range(2):  # the recorded second PUT was answered with 201 as well
        status, _, body = sandbox.http("PUT", schedules.path, request)
        assert status == recorded["status"]
        assert shape(body) == shape(recorded["response_body"])
    assert body["id"].split("/")[3] == "resourcegroups"
    assert sandbox.http("GET", schedules.path)[2] == body
    assert sandbox.http("GET", f"{schedules.all}?{API}")[2]["value"] == [body]
    everywhere = f"/subscriptions/{sandbox.subscription}/providers/Microsoft.DevTestLab/schedules?{API}"
    assert sandbox.http("GET", everywhere)[2]["value"] == [body]
    assert [each.type for each in sandbox.resource.resources.list()] == ["microsoft.devtestlab/schedules"]
    status, _, body = sandbox.http("DELETE", schedules.path)
    assert (status, body) == (200, None)
    assert sandbox.http("DELETE", schedules.path)[0] == 204
    assert sandbox.http("GET", schedules.path)[0] == 404


def test_schedule_fires_daily_in_its_time_zone(sandbox: Sandbox) -> None:
    place = Place(sandbox)
    place.make("m")
    schedules = Schedules(sandbox, place.group)
    # To the day before the clocks change, some weeks or months ahead.
    day = schedules.now.astimezone(CHICAGO).date()
    while True:
        noon = datetime(day.year, day.month, day.day, 12, tzinfo=CHICAGO)
        if noon.utcoffset() != (noon + timedelta(days=1)).utcoffset():
            break
        day += timedelta(days=1)
    schedules.go_to(noon)
    schedules.put("1900", "Central Standard Time")
    start = f"{schedules.machine}/start?api-version=2024-11-01"
    fired = []
    for days in (0, 1):
        evening = datetime(day.year, day.month, day.day, 19, tzinfo=CHICAGO) + timedelta(days=days)
        schedules.go_to(evening - timedelta(seconds=90))
        assert power(sandbox) == "running"
        schedules.go_to(evening + timedelta(seconds=90))
        assert power(sandbox) == "deallocated"
        fired.append(evening.astimezone(UTC))
        assert sandbox.http("POST", start)[0] == 202
    assert fired[1] - fired[0] != timedelta(days=1), "a day with a change of the clocks is longer or shorter"
    deallocated = [since for state, since in timeline(sandbox) if state == "deallocated"]
    assert [since[:16] for since in deallocated] == [f"{moment:%Y-%m-%dT%H:%M}" for moment in fired]


def test_disabled_changed_or_deleted_schedule_does_not_fire(sandbox: Sandbox) -> None:
    schedules = Schedules(sandbox)
    schedules.put()
    assert schedules.pending() == 1
    schedules.put(status="Disabled")
    assert schedules.pending() == 0
    status, _, body = sandbox.http("PATCH", schedules.path, {"properties": {"status": "Enabled"}, "tags": {"a": "b"}})
    assert (status, body["properties"]["status"], body["tags"]) == (200, "Enabled", {"a": "b"})
    assert body["properties"]["dailyRecurrence"] == {"time": "1900"}
    schedules.put("0300")
    assert schedules.pending() == 1
    sandbox.http("DELETE", schedules.path)
    assert schedules.pending() == 0
    schedules.put()
    sandbox.resource.resource_groups.begin_delete("demo").result()
    assert schedules.pending() == 0


def due(schedules: Schedules) -> datetime:
    """When the shutdown fires next."""
    connection = schedules.sandbox.server.cloud.store.connection
    (found,) = connection.execute("SELECT due FROM events WHERE kind = 'schedule-fire'").fetchone()
    return datetime.fromtimestamp(found, UTC)


@pytest.mark.parametrize("window", [60, 1800])
def test_change_shortly_before_the_time_counts_from_the_next_day_on(sandbox: Sandbox, window: int) -> None:
    schedules = Schedules(sandbox)
    sandbox.freeze()
    sandbox.control("POST", "faults", {"name": "schedule-window", "seconds": window})
    tomorrow = schedules.now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    evening = tomorrow + timedelta(hours=19)
    schedules.go_to(tomorrow)
    schedules.put("1900")
    schedules.go_to(evening - timedelta(seconds=window + 5))
    schedules.put("2000")
    assert due(schedules) == evening + timedelta(hours=1), "in time"
    schedules.go_to(evening + timedelta(hours=1, seconds=5 - window))
    schedules.put("2200")
    assert due(schedules) == evening + timedelta(hours=1), "the old time holds today"
    schedules.put(status="Disabled")
    assert due(schedules) == evening + timedelta(hours=1), "it is too late to switch it off"
    schedules.go_to(evening + timedelta(hours=2, seconds=-10))
    schedules.put("2100")
    assert due(schedules) > evening + timedelta(days=1), "a new time that is so near does not count today"


def test_region_without_schedules_is_not_listed_and_refuses(sandbox: Sandbox) -> None:
    schedules = Schedules(sandbox)
    sandbox.control("POST", "faults", {"name": "no-schedules", "region": "eastus"})
    provider = f"/subscriptions/{sandbox.subscription}/providers/Microsoft.DevTestLab?api-version=2021-04-01"
    (kind,) = (
        each for each in sandbox.http("GET", provider)[2]["resourceTypes"] if each["resourceType"] == "schedules"
    )
    assert "East US" not in kind["locations"]
    assert "South Central US" in kind["locations"]
    status, _, body = sandbox.http("PUT", schedules.path, schedules.body())
    assert (status, body["error"]["code"]) == (400, "LocationNotAvailableForResourceType")


def test_schedule_of_a_missing_vm_fires_again_the_next_day(sandbox: Sandbox) -> None:
    schedules = Schedules(sandbox)
    schedules.put()
    sandbox.control("POST", "clock", {"advance": 3 * 86400})
    assert schedules.pending() == 1
    assert sandbox.http("GET", schedules.path)[0] == 200


def test_invalid_schedule_is_refused(sandbox: Sandbox) -> None:
    schedules = Schedules(sandbox)
    bad: list[Any] = [
        None,
        {"location": "eastus"},
        schedules.body("2400"),
        schedules.body("19:00"),
        schedules.body(zone="Middle Earth Time"),
        schedules.body(zone="../../etc/passwd"),
        schedules.body(timeZoneId=3),
        schedules.body(status=["Enabled"]),
        schedules.body(dailyRecurrence=None),
        schedules.body(dailyRecurrence={"time": 1900}),
        schedules.body(notificationSettings=3),
        schedules.body(targetResourceId="m"),
        schedules.body(targetResourceId={}),
        schedules.body(targetResourceId=schedules.group),
        {**schedules.body(), "location": "atlantis"},
    ]
    for body in bad:
        assert sandbox.http("PUT", schedules.path, body)[0] == 400, body
    other = schedules.path.replace("shutdown-computevm-m", "anything")
    assert sandbox.http("PUT", other, schedules.body())[0] == 400
    assert sandbox.http("PUT", schedules.path, schedules.body(taskType="LabVmsStartupTask"))[0] == 501
    assert schedules.pending() == 0


def test_schedule_requires_a_registered_provider(sandbox: Sandbox) -> None:
    schedules = Schedules(sandbox)
    provider = f"/subscriptions/{sandbox.subscription}/providers/Microsoft.DevTestLab"
    sandbox.http("POST", f"{provider}/unregister?{API}")
    status, _, body = sandbox.http("PUT", schedules.path, schedules.body())
    assert (status, body["error"]["code"]) == (409, "MissingSubscriptionRegistration")
    sandbox.http("POST", f"{provider}/register?{API}")
    schedules.put()


def test_schedule_times_at_clock_changes() -> None:
    zone = find_zone("Central Standard Time")
    assert zone is not None

    def following(moment: datetime, clock_time: str) -> list[str]:
        found, now = [], moment.timestamp()
        for _ in range(3):
            now = next_time(now, clock_time, zone)
            found.append(f"{datetime.fromtimestamp(now, UTC):%m-%d %H:%M}")
        return found

    spring, autumn = datetime(2026, 3, 7, 12, tzinfo=UTC), datetime(2026, 10, 31, 12, tzinfo=UTC)
    assert following(spring, "0230") == ["03-08 08:30", "03-09 07:30", "03-10 07:30"]
    assert following(autumn, "0130") == ["11-01 06:30", "11-02 07:30", "11-03 07:30"]
    assert following(spring, "1900") == ["03-08 01:00", "03-09 00:00", "03-10 00:00"]
