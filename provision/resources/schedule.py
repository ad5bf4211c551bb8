"""Azure's own daily stop of the machine, at the end of its lease: it needs neither us nor the guest."""

from __future__ import annotations

from collections.abc import Iterator

from gpuinfra.models.plan import Difference
from gpuinfra.models.resource import Kind, Resource
from provision.cloud import Part
from provision.resources.common import missing_tags, place, resource, whole_update
from provision.setting import Setting

update = whole_update


def desired(setting: Setting) -> Resource:
    """A lease of a day or more cannot be said as a time of day: then the schedule is off, and the tag alone holds."""
    properties = {
        "status": "Enabled" if setting.lease.is_daily else "Disabled",
        "taskType": "ComputeVmShutdownTask",
        "dailyRecurrence": {"time": setting.lease.until.strftime("%H%M")},
        "timeZoneId": "UTC",
        "notificationSettings": {"status": "Disabled"},
        "targetResourceId": setting.id(Kind.MACHINE),
    }
    return resource(setting, Kind.SCHEDULE, properties)


def differences(wanted: Resource, part: Part) -> Iterator[Difference]:
    """It moves with the lease."""
    yield from place(wanted, part)
    old, new = part.properties, wanted.body["properties"]
    shown = [f"{each.get('status')} {(each.get('dailyRecurrence') or {}).get('time')} UTC" for each in (old, new)]
    if shown[0] != shown[1] or old.get("timeZoneId") != "UTC":
        yield Difference("daily stop", shown[0], shown[1])
    elif str(old.get("targetResourceId", "")).casefold() != new["targetResourceId"].casefold():
        yield Difference("daily stop", "of another machine", "of this one")
    yield from missing_tags(wanted, part)
