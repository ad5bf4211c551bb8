"""How long the machine may be on: decided anew at every power-on, and when the spec says something else."""

from __future__ import annotations

from datetime import datetime, timedelta

from gpuinfra.models.spec import Spec
from provision import tags
from provision.cloud import Part
from provision.setting import Lease

ON = frozenset({"running", "starting", "stopped", "stopping"})
"""Power states that are billed."""


def decide(spec: Spec, machine: Part | None, now: datetime) -> Lease:
    """A machine that is on keeps its lease; one that is off, or whose lease is over, gets a new one."""
    fresh = _lease(now, now, spec.lifecycle.lease)
    if machine is None or machine.power not in ON:
        return fresh
    since, until = tags.moment(machine.tags, tags.ON_SINCE), tags.moment(machine.tags, tags.LEASE_UNTIL)
    if since is None or until is None:
        return fresh
    if tags.get(machine.tags, tags.DIGEST) != spec.digest():
        until = _whole_minute(since + spec.lifecycle.lease)
    if until > now:
        return Lease(since, until, now)
    return _lease(since, now, spec.lifecycle.lease)


def _lease(since: datetime, now: datetime, length: timedelta) -> Lease:
    return Lease(since.replace(microsecond=0), _whole_minute(now + length), now)


def _whole_minute(moment: datetime) -> datetime:
    # Azure's schedule knows minutes; the tag and the schedule have to say the same.
    return (moment + timedelta(seconds=59)).replace(second=0, microsecond=0)
