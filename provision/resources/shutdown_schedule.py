"""Azure's daily shutdown of the VM, soon after the lease's end. It needs neither gpuinfra nor the guest."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuinfra.models.plan import Difference, Kind, Resource
from gpuinfra.provision import tags
from gpuinfra.provision.lease import BACKSTOP
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.resources.common import PlanInput, missing_tags, place, resource, whole_update, with_others
from gpuinfra.provision.tags import ref_of

update = whole_update

WINDOW = timedelta(minutes=31)
"""A change less than this before the daily stop may take effect only the next day, so the old stop still fires."""
DAILY_STOP = "daily stop"
TOO_LATE = "Azure may apply a change that is less than 31 minutes ahead from the next day on"


def desired(plan_input: PlanInput) -> Resource:
    """Return the desired schedule for the machine's current lease."""
    lease = plan_input.lease
    properties = _properties(lease.until, lease.decided or lease.on_since, plan_input.id(Kind.VM))
    return resource(plan_input, Kind.SHUTDOWN_SCHEDULE, properties)


def schedule_update(
    machine: ObservedResource, found: ObservedResource | None, until: datetime, now: datetime, subscription: str
) -> Resource | None:
    """Return the schedule to send for a lease that ends at `until`, without a spec; None if nothing must change.

    A schedule with this name that is not ours is not changed.
    """
    name = tags.get(machine.tags, tags.NAME) or machine.ref.name
    if found and not tags.belongs_to(found.tags, name):
        return None
    own = {tags.NAME: name}
    body = {
        "location": machine.region,
        "tags": with_others(found, own) if found else {**machine.other_tags, **own},
        "properties": _properties(until, now, machine.ref.id(subscription)),
    }
    wanted = Resource(ref_of(Kind.SHUTDOWN_SCHEDULE, machine.ref.group, machine.ref.name), body)
    return wanted if found is None or any(differences(wanted, found)) else None


def _properties(until: datetime, now: datetime, machine: str) -> dict[str, Any]:
    return {
        **schedule_for(until, now),
        "taskType": "ComputeVmShutdownTask",
        "timeZoneId": "UTC",
        "notificationSettings": {"status": "Disabled"},
        "targetResourceId": machine,
    }


def schedule_for(until: datetime, now: datetime) -> dict[str, Any]:
    """Return status and time. A schedule has no date: if the stop is a day or more away, it is disabled.

    The lease tag alone applies then.
    """
    backstop = until + BACKSTOP
    status = "Enabled" if backstop - now < timedelta(days=1) else "Disabled"
    return {"status": status, "dailyRecurrence": {"time": f"{backstop.astimezone(UTC):%H%M}"}}


def is_off(part: ObservedResource) -> bool:
    """Return whether a schedule is switched off."""
    return part.properties.get("status") == "Disabled"


def latest_end(now: datetime) -> datetime:
    """Return the latest end of a lease with which the schedule is enabled."""
    return (now + timedelta(days=1) - BACKSTOP).replace(second=0, microsecond=0) - timedelta(minutes=1)


def imminent_stop(part: ObservedResource | None, now: datetime) -> datetime | None:
    """Return when a schedule fires next if that is too soon for a change to prevent it reliably, else None."""
    found = part.properties if part else {}
    time = str((found.get("dailyRecurrence") or {}).get("time") or "")
    if found.get("status") != "Enabled" or found.get("timeZoneId") != "UTC" or not re.fullmatch(r"[0-9]{4}", time):
        return None
    now = now.astimezone(UTC)
    due = now.replace(hour=0, minute=0, second=0, microsecond=0)
    due += timedelta(hours=int(time[:2]), minutes=int(time[2:]))
    due += timedelta(days=1) if due <= now else timedelta()
    return due if due - now < WINDOW else None


def differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    """Yield differences in region, time, target and tags."""
    yield from place(wanted, part)
    old, new = part.properties, wanted.body["properties"]
    shown = [f"{each.get('status')} {(each.get('dailyRecurrence') or {}).get('time')} UTC" for each in (old, new)]
    if shown[0] != shown[1] or old.get("timeZoneId") != "UTC":
        yield Difference(DAILY_STOP, shown[0], shown[1], of_lease=old.get("timeZoneId") == "UTC")
    elif str(old.get("targetResourceId", "")).casefold() != new["targetResourceId"].casefold():
        yield Difference(DAILY_STOP, "of another machine", "of this one")
    yield from missing_tags(wanted, part)
