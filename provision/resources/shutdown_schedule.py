"""Azure's own daily stop of the machine, at the end of its lease: it needs neither us nor the guest."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuinfra.models.plan import Difference
from gpuinfra.models.resource import Kind, Resource
from gpuinfra.models.tags import OUR_PREFIX
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import ObservedResource
from gpuinfra.provision.names import ref_of
from gpuinfra.provision.plan_input import PlanInput
from gpuinfra.provision.resources.common import missing_tags, place, resource, whole_update, with_others

update = whole_update


def desired(setting: PlanInput) -> Resource:
    """All of it, for the lease that the machine has now."""
    lease = setting.lease
    properties = _properties(lease.until, lease.decided or lease.on_since, setting.id(Kind.VM))
    return resource(setting, Kind.SHUTDOWN_SCHEDULE, properties)


def moved(
    machine: ObservedResource, found: ObservedResource | None, until: datetime, now: datetime, subscription: str
) -> Resource | None:
    """What to send where a machine's lease ends at `until`, and no spec is known. None where it is so already, or
    where somebody else has made what has this name."""
    name = tags.get(machine.tags, tags.NAME) or machine.ref.name
    if found and not tags.belongs_to(found.tags, name):
        return None
    own = {tags.NAME: name}
    body = {
        "location": machine.region,
        "tags": with_others(found, own) if found else {**_users_own(machine), **own},
        "properties": _properties(until, now, machine.ref.id(subscription)),
    }
    wanted = Resource(ref_of(Kind.SHUTDOWN_SCHEDULE, machine.ref.group, machine.ref.name), body)
    return wanted if found is None or any(differences(wanted, found)) else None


def _users_own(machine: ObservedResource) -> dict[str, str]:
    return {key: value for key, value in machine.tags.items() if not key.casefold().startswith(OUR_PREFIX)}


def _properties(until: datetime, now: datetime, machine: str) -> dict[str, Any]:
    return {
        **schedule_for(until, now),
        "taskType": "ComputeVmShutdownTask",
        "timeZoneId": "UTC",
        "notificationSettings": {"status": "Disabled"},
        "targetResourceId": machine,
    }


def schedule_for(until: datetime, now: datetime) -> dict[str, Any]:
    """When it stops the machine. It knows a time of day but no day: with a day or more to go it is off, and the tag
    alone holds."""
    status = "Enabled" if until - now < timedelta(days=1) else "Disabled"
    return {"status": status, "dailyRecurrence": {"time": f"{until.astimezone(UTC):%H%M}"}}


def differences(wanted: Resource, part: ObservedResource) -> Iterator[Difference]:
    """It moves with the lease."""
    yield from place(wanted, part)
    old, new = part.properties, wanted.body["properties"]
    shown = [f"{each.get('status')} {(each.get('dailyRecurrence') or {}).get('time')} UTC" for each in (old, new)]
    if shown[0] != shown[1] or old.get("timeZoneId") != "UTC":
        yield Difference("daily stop", shown[0], shown[1])
    elif str(old.get("targetResourceId", "")).casefold() != new["targetResourceId"].casefold():
        yield Difference("daily stop", "of another machine", "of this one")
    yield from missing_tags(wanted, part)
