"""Ask Azure's activity log when one machine was switched on or off, where its tag and its last change do not say."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from gpuinfra.models.json_values import stamp
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Cloud
from gpuinfra.provision.costing.activity import KEPT, Event, last_time_on, on_since, read_events
from gpuinfra.provision.errors import CloudError, Fault
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.power import BILLED

# The time in our tag is that of the request, and differs slightly from those in the log.
BEFORE = timedelta(minutes=5)


def window(marks: Mapping[str, str] | None, now: datetime) -> datetime:
    """Return since when to read the log of a machine with these tags: shortly before it was last switched on."""
    since = tags.moment(marks, tags.ON_SINCE)
    return max(now - KEPT, min(since, now) - BEFORE) if since else now - KEPT


def with_power_on(cloud: Cloud, machine: ObservedResource) -> ObservedResource:
    """Return a machine with its power-on time in the tag, from Azure if the tag is missing. Azure is not changed.

    Otherwise its cost cap would start over.
    """
    if machine.power not in BILLED or tags.moment(machine.tags, tags.ON_SINCE):
        return machine
    since = _power_on(cloud, machine)
    if since is None:
        return machine
    kept = {name: value for name, value in machine.tags.items() if name.casefold() != tags.ON_SINCE}
    return replace(machine, body={**machine.body, "tags": {**kept, tags.ON_SINCE: stamp(since) or ""}})


def off_since(cloud: Cloud, machine: ObservedResource) -> datetime | None:
    """Return when a machine that is off was switched off, or None if the log does not say.

    Its last change may be later: each day Azure's schedule deallocates a machine, even if that is off already.
    """
    found = last_time_on(_events(cloud, machine) or ())
    return found[1].at if found else None


def _power_on(cloud: Cloud, machine: ObservedResource) -> datetime | None:
    """Return the time in Azure's activity log, or the latest possible time if the log does not have it."""
    events = _events(cloud, machine)
    if found := on_since(events or ()):
        return found
    first = cloud.now() - KEPT
    if events == [] and machine.created and machine.created < first:
        return first  # it was on during all of the log, which has no event of it
    # Azure's log may lag by minutes. The machine was on when its last operation ended.
    return machine.changed


def _events(cloud: Cloud, machine: ObservedResource) -> list[Event] | None:
    """Return a machine's events since shortly before it was last switched on, or None if the log cannot be read."""
    now = cloud.now()
    since = window(machine.tags, now)
    try:
        return read_events(cloud.fleet.activity_log(since, now, machine.ref.id(cloud.subscription)))
    except CloudError as error:
        if error.fault in {Fault.INTERRUPTED, Fault.LOGIN}:
            raise
        return None
