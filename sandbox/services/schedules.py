"""Shutdown schedules: Microsoft.DevTestLab's daily shutdown of a VM. They really fire."""

import logging
import re
import uuid
from datetime import datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gpuinfra.sandbox.kernel.call import Answer, Call
from gpuinfra.sandbox.kernel.clock import stamp
from gpuinfra.sandbox.kernel.cloud import Cloud
from gpuinfra.sandbox.kernel.errors import ArmError, invalid_parameter, outside_the_slice
from gpuinfra.sandbox.kernel.faults import NO_SCHEDULES, SCHEDULE_WINDOW
from gpuinfra.sandbox.kernel.internal_calls import call_inside
from gpuinfra.sandbox.kernel.routes import GROUP, Service, merge, parse_id
from gpuinfra.sandbox.kernel.store import Resource
from gpuinfra.sandbox.services import common
from gpuinfra.sandbox.services.resources.providers import registration

logger = logging.getLogger(__name__)

service = Service()

NAMESPACE = "Microsoft.DevTestLab"
KIND = f"{NAMESPACE}/schedules"
TASK = "ComputeVmShutdownTask"
_ONE = f"{GROUP}/providers/{KIND}/{{name}}"
common.add_reads(service, KIND)
_GIVEN = ("status", "taskType", "dailyRecurrence", "timeZoneId", "notificationSettings", "targetResourceId")


@service.route("PUT", _ONE)
def put_schedule(call: Call) -> Answer:
    """Create or replace a schedule, at once. Azure answers 201 to both."""
    common.require_group(call, for_write=True)
    _check_registration(call.cloud)
    common.check_name(call["name"], r"(?i)shutdown-computevm-[\w.-]{1,64}", "It must be shutdown-computevm-<machine>.")
    body = common.require_object(call)
    location = common.require_location(call, body, KIND)
    if call.cloud.faults.look(NO_SCHEDULES, resource_id=common.resource_id(call, KIND), region=location):
        message = f"The provided location '{location}' is not available for resource type '{KIND}'."
        raise ArmError(400, "LocationNotAvailableForResourceType", message)
    existing = common.find_resource(call, KIND)
    schedule = existing or Resource(common.resource_id(call, KIND), location, {})
    given = _checked(call, common.section(body, "properties"))
    old = existing.properties if existing else {}
    properties = {
        **given,
        "createdDate": old.get("createdDate", stamp(call.cloud.now)),
        "provisioningState": "Succeeded",
        "uniqueIdentifier": old.get("uniqueIdentifier", str(uuid.uuid4())),
    }
    schedule.body = _body(call, schedule, location, properties)
    common.set_tags(schedule, body)
    _keep(call.cloud, schedule)
    return Answer(201, schedule.body)


@service.route("PATCH", _ONE)
def patch_schedule(call: Call) -> Answer:
    """Change a schedule."""
    schedule, body = common.read_patch(call, KIND)
    changed = merge(schedule.properties, common.section(body, "properties"))
    schedule.properties.update(_checked(call, changed))
    _keep(call.cloud, schedule)
    return Answer(200, schedule.body)


@service.route("DELETE", _ONE)
def delete_schedule(call: Call) -> Answer:
    """Delete a schedule; it will not fire again."""
    schedule = common.find_to_delete(call, KIND)
    if schedule is None:
        return Answer(204)
    _cancel(call.cloud, schedule)
    call.cloud.store.delete(schedule.id)
    return Answer(200)


@service.effect("schedule-fire")
def fire(cloud: Cloud, payload: dict[str, Any]) -> None:
    """Deallocate the VM. If that fails, the schedule fires again the next day."""
    schedule = cloud.store.get(payload["schedule"])
    if schedule is None or schedule.hidden.get("ticket") != payload["ticket"]:
        return
    schedule.hidden.pop("event", None)
    schedule.hidden.pop("due", None)
    _keep(cloud, schedule)
    target = schedule.properties["targetResourceId"]
    try:
        call_inside(cloud, "POST", f"{target}/deallocate")
    except ArmError as error:
        logger.warning("schedule %s: %s", schedule.name, error)


def next_time(now: float, clock_time: str, zone: ZoneInfo) -> float:
    """Return when a clock in the zone next shows a time (HHMM).

    When daylight saving skips a time, it comes as much later; of a time that comes twice, the first one counts.
    """
    wanted = time(int(clock_time[:2]), int(clock_time[2:]))
    day = datetime.fromtimestamp(now, zone).date() - timedelta(days=1)
    while (due := datetime.combine(day, wanted, zone).timestamp()) <= now:
        day += timedelta(days=1)
    return due


def _check_registration(cloud: Cloud) -> None:
    if registration(cloud, NAMESPACE) != "Registered":
        message = (
            f"The subscription is not registered to use namespace '{NAMESPACE}'. See https://aka.ms/rps-not-found for "
            "how to register subscriptions."
        )
        detail = {"code": "MissingSubscriptionRegistration", "target": NAMESPACE, "message": message}
        raise ArmError(409, "MissingSubscriptionRegistration", message, details=[detail])


def _checked(call: Call, properties: dict[str, Any]) -> dict[str, Any]:
    """Return the valid properties of a schedule, by DevTestLab's rules."""
    if (task := properties.get("taskType", TASK)) != TASK:
        raise outside_the_slice(call.method, f"{call.path} with taskType {task}")
    status = properties.get("status", "Enabled")
    if status not in ("Enabled", "Disabled"):
        raise invalid_parameter("status", f"The value '{status}' of status is neither Enabled nor Disabled.")
    clock_time = common.section(properties, "dailyRecurrence").get("time")
    if not isinstance(clock_time, str) or not re.fullmatch(r"([01][0-9]|2[0-3])[0-5][0-9]", clock_time):
        raise invalid_parameter("dailyRecurrence.time", f"The time '{clock_time}' is not of the form HHMM.")
    zone = properties.get("timeZoneId", "UTC")
    if not isinstance(zone, str) or find_zone(zone) is None:
        raise invalid_parameter("timeZoneId", f"The time zone '{zone}' is not known.")
    common.section(properties, "notificationSettings")
    target = properties.get("targetResourceId")
    if not _is_machine(call.cloud, target):
        raise invalid_parameter("targetResourceId", f"The value '{target}' is not the id of a virtual machine.")
    full = {"status": status, "taskType": TASK, "timeZoneId": zone, **properties}
    return {name: full[name] for name in _GIVEN if full.get(name) is not None}


def _is_machine(cloud: Cloud, target: Any) -> bool:
    try:
        parsed = parse_id(target) if isinstance(target, str) else None
    except ValueError:
        return False
    return (
        parsed is not None
        and parsed.subscription.lower() == cloud.subscription.lower()
        and parsed.type.lower() == "microsoft.compute/virtualmachines"
    )


def _body(call: Call, schedule: Resource, location: str, properties: dict[str, Any]) -> dict[str, Any]:
    # DevTestLab writes ids and types in lower case.
    return {
        "properties": properties,
        "location": location,
        "id": f"/subscriptions/{call.cloud.subscription}/resourcegroups/{schedule.group}/providers/{KIND.lower()}/"
        f"{schedule.name}",
        "name": schedule.name,
        "type": KIND.lower(),
    }


def _cancel(cloud: Cloud, schedule: Resource) -> None:
    if "event" in schedule.hidden:
        cloud.store.remove_event(schedule.hidden.pop("event"))
        schedule.hidden.pop("due", None)


def _keep(cloud: Cloud, schedule: Resource) -> None:
    """Store a schedule, and let it fire at its next time if it is enabled.

    A change shortly before the time applies from the next day on: today the old time holds, and a new time that
    is as close does not count. Azure's documentation is inconsistent about how shortly (1 to 31 minutes).
    """
    window = cloud.faults.seconds(SCHEDULE_WINDOW, resource_id=schedule.id, region=schedule.location)
    if "event" in schedule.hidden and schedule.hidden.get("due", 0.0) - cloud.now < window:
        cloud.store.put(schedule, cloud.now)
        return
    _cancel(cloud, schedule)
    properties = schedule.properties
    zone = find_zone(properties["timeZoneId"])
    if properties["status"] == "Enabled" and zone is not None:
        due = next_time(cloud.now, properties["dailyRecurrence"]["time"], zone)
        if due - cloud.now < window:
            due = next_time(due, properties["dailyRecurrence"]["time"], zone)
        schedule.hidden["due"] = due
        ticket = schedule.hidden["ticket"] = str(uuid.uuid4())
        schedule.hidden["event"] = cloud.schedule(due, "schedule-fire", {"schedule": schedule.id, "ticket": ticket})
    cloud.store.put(schedule, cloud.now)


# From Unicode's windowsZones.xml, territory 001.
_WINDOWS = {
    "Afghanistan Standard Time": "Asia/Kabul",
    "Alaskan Standard Time": "America/Anchorage",
    "Arab Standard Time": "Asia/Riyadh",
    "Arabian Standard Time": "Asia/Dubai",
    "Argentina Standard Time": "America/Buenos_Aires",
    "Atlantic Standard Time": "America/Halifax",
    "AUS Central Standard Time": "Australia/Darwin",
    "AUS Eastern Standard Time": "Australia/Sydney",
    "Bangladesh Standard Time": "Asia/Dhaka",
    "Belarus Standard Time": "Europe/Minsk",
    "Canada Central Standard Time": "America/Regina",
    "Cen. Australia Standard Time": "Australia/Adelaide",
    "Central America Standard Time": "America/Guatemala",
    "Central Asia Standard Time": "Asia/Bishkek",
    "Central Europe Standard Time": "Europe/Budapest",
    "Central European Standard Time": "Europe/Warsaw",
    "Central Standard Time": "America/Chicago",
    "Central Standard Time (Mexico)": "America/Mexico_City",
    "China Standard Time": "Asia/Shanghai",
    "E. Africa Standard Time": "Africa/Nairobi",
    "E. Australia Standard Time": "Australia/Brisbane",
    "E. Europe Standard Time": "Europe/Chisinau",
    "E. South America Standard Time": "America/Sao_Paulo",
    "Eastern Standard Time": "America/New_York",
    "Egypt Standard Time": "Africa/Cairo",
    "FLE Standard Time": "Europe/Kiev",
    "GMT Standard Time": "Europe/London",
    "Greenwich Standard Time": "Atlantic/Reykjavik",
    "GTB Standard Time": "Europe/Bucharest",
    "Hawaiian Standard Time": "Pacific/Honolulu",
    "India Standard Time": "Asia/Calcutta",
    "Iran Standard Time": "Asia/Tehran",
    "Israel Standard Time": "Asia/Jerusalem",
    "Korea Standard Time": "Asia/Seoul",
    "Mountain Standard Time": "America/Denver",
    "Nepal Standard Time": "Asia/Katmandu",
    "New Zealand Standard Time": "Pacific/Auckland",
    "Newfoundland Standard Time": "America/St_Johns",
    "Pacific SA Standard Time": "America/Santiago",
    "Pacific Standard Time": "America/Los_Angeles",
    "Pakistan Standard Time": "Asia/Karachi",
    "Romance Standard Time": "Europe/Paris",
    "Russian Standard Time": "Europe/Moscow",
    "SA Pacific Standard Time": "America/Bogota",
    "SE Asia Standard Time": "Asia/Bangkok",
    "Singapore Standard Time": "Asia/Singapore",
    "South Africa Standard Time": "Africa/Johannesburg",
    "Taipei Standard Time": "Asia/Taipei",
    "Tokyo Standard Time": "Asia/Tokyo",
    "Turkey Standard Time": "Europe/Istanbul",
    "US Eastern Standard Time": "America/Indianapolis",
    "US Mountain Standard Time": "America/Phoenix",
    "UTC": "Etc/UTC",
    "W. Australia Standard Time": "Australia/Perth",
    "W. Europe Standard Time": "Europe/Berlin",
    "West Africa Standard Time": "Africa/Lagos",
}


def find_zone(name: str) -> ZoneInfo | None:
    """Return the zone of a name, or None. Windows' names match in any case."""
    known = {windows.lower(): database for windows, database in _WINDOWS.items()}
    try:
        return ZoneInfo(known.get(name.lower(), name))
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
