"""What should become of a machine now: a rule of state, so that whoever missed the moment catches up. All pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from gpuinfra.models.durations import format_duration
from gpuinfra.models.hours import Hours
from gpuinfra.models.reap import ReapAction, Verdict
from gpuinfra.models.receipt import stamp
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import DELETING, ObservedResource
from gpuinfra.provision.lifecycle.hours import HORIZON, from_tag, is_on, next_change
from gpuinfra.provision.lifecycle.lease import ON, cap_end, is_over, why_over
from gpuinfra.provision.lifecycle.terms import from_tag as terms_from_tag
from gpuinfra.provision.names import machine_key
from gpuinfra.provision.ownership import Owner, machine_of_row, owner_of

OFF = frozenset({"deallocated", "deallocating"})
# A machine that was only shut down is billed for nothing. Somebody may be about to switch it on again.
STOPPED_FOR = timedelta(minutes=15)
STOPPED = "stopped, but billed"
GRACE = timedelta(hours=24)
NOT_FROM_HERE = "left alone: its spec is not from this repository"
_NOT_PROTECTED = frozenset({"", "false"})


@dataclass(frozen=True)
class Rules:
    """All that the decision depends on besides the machine itself and the time."""

    specs: Mapping[str, Spec] = field(default_factory=dict)
    """By the machine's key: see `names.machine_key`."""
    repository: str = ""
    """The id of the git repository that the specs are from: they speak only for machines that carry it."""
    deleted: Mapping[str, datetime] = field(default_factory=dict)
    """Keys of machines whose specs are gone from git, and since when."""
    unfetched: frozenset[str] = frozenset()
    """Names, case folded, of machines whose disks hold outputs that nobody has fetched."""
    unknown: frozenset[str] = frozenset()
    """Names, case folded, of machines that cannot be asked what is on their disks."""
    protected: frozenset[str] = frozenset()
    """Names, case folded, of machines of which some part is protected: what is deleted goes with all its parts."""
    grace: timedelta = GRACE
    starts: bool = False
    deletes: bool = False


def verdicts(rows: Sequence[Mapping[str, Any]], rules: Rules, now: datetime) -> list[Verdict]:
    """One for every machine that is ours, by name."""
    found = [verdict for row in rows if (verdict := judge(machine_of_row(row), rules, now))]
    return sorted(found, key=lambda verdict: (verdict.name.casefold(), verdict.ref.group.casefold()))


def judge(machine: ObservedResource, rules: Rules, now: datetime) -> Verdict | None:
    """The verdict on one machine; None where it is not ours."""
    if owner_of(machine) is not Owner.OURS:
        return None
    name = machine.ref.name
    found = _judge(machine, name, rules if _is_from(machine, rules) else _without_specs(rules), now)
    if is_protected(machine.tags) and found.action is not ReapAction.KEEP:
        return Verdict(name, machine.ref, ReapAction.PROTECTED, found.cause, found.action)
    return found


def disputed(rows: Sequence[Mapping[str, Any]], rules: Rules, now: datetime, option: str) -> list[str]:
    """A line for each machine that a spec of another repository would end or start. `option` goes with commands."""
    if not rules.repository:
        return []  # the note about the folder says it once
    machines = [machine for row in rows if owner_of(machine := machine_of_row(row)) is Owner.OURS]
    found = []
    for machine in machines:
        name = machine.ref.name
        by_spec = _judge(machine, name, rules, now)
        if not _is_from(machine, rules) and by_spec != _judge(machine, name, _without_specs(rules), now):
            on_purpose = "to start it: gpuinfra up SPEC" if by_spec.action is ReapAction.START else _end(machine)
            where = f"{machine.ref} in group {machine.ref.group}"
            found.append(f"{where}: {by_spec.cause}; {NOT_FROM_HERE}; {on_purpose}{option}")
    return sorted(found)


def _end(machine: ObservedResource) -> str:
    return f"to end it: gpuinfra down {machine.ref.name}"


def _is_from(machine: ObservedResource, rules: Rules) -> bool:
    """Whether the machine's spec is from the repository of these specs: otherwise any team could end any machine."""
    return bool(rules.repository) and tags.get(machine.tags, tags.REPOSITORY) == rules.repository


def _without_specs(rules: Rules) -> Rules:
    return replace(rules, specs={}, deleted={})


def is_protected(marks: Mapping[str, str]) -> bool:
    """Whether somebody has said that it is not to be touched."""
    return tags.get(marks, tags.PROTECT).strip().casefold() not in _NOT_PROTECTED


def _judge(machine: ObservedResource, name: str, rules: Rules, now: datetime) -> Verdict:
    keep = Verdict(name, machine.ref, ReapAction.KEEP)
    if machine.state == DELETING:
        return _unfinished_deletion(keep, machine, now)
    key = machine_key(machine.ref.group, name)
    spec, gone = rules.specs.get(key), _gone(machine, key, rules, now)
    if gone and rules.deletes and not _is_being_made(machine, now):
        return _deletion(keep, gone, machine, rules)
    if machine.power not in OFF:
        causes = list(_causes(machine, spec, gone, now))
        return Verdict(name, machine.ref, ReapAction.STOP, "; ".join(causes)) if causes else keep
    if gone:
        return Verdict(name, machine.ref, ReapAction.KEEP, gone)
    until = _start_until(machine, spec, now) if rules.starts and spec else None
    if until is None:
        return keep
    return Verdict(name, machine.ref, ReapAction.START, "its hours have begun", until=until)


def _unfinished_deletion(keep: Verdict, machine: ObservedResource, now: datetime) -> Verdict:
    """Azure bills a machine until its deletion has ended: beyond its lease, the deletion is asked for again."""
    causes = [] if machine.power in OFF else [*_causes(machine, None, "", now)]
    if not causes:
        return keep
    return Verdict(keep.name, keep.ref, ReapAction.STOP, "; ".join([*causes, "its deletion has not ended"]))


def _deletion(keep: Verdict, gone: str, machine: ObservedResource, rules: Rules) -> Verdict:
    why = _why_not_deleted(keep.name.casefold(), machine, rules)
    if not why:
        return Verdict(keep.name, keep.ref, ReapAction.DELETE, gone)
    action = ReapAction.KEEP if machine.power in OFF else ReapAction.STOP
    return Verdict(keep.name, keep.ref, action, f"{gone}; {why}, so it is not deleted")


def _why_not_deleted(name: str, machine: ObservedResource, rules: Rules) -> str:
    if name in rules.unfetched:
        # Outputs are never lost by a teardown: off it goes, and the disk stays.
        return "outputs on its disk were not fetched"
    if name in rules.unknown:
        return "it cannot be asked for its runs, and its disk may hold outputs (`--yes` deletes it)"
    # One that is protected itself is not touched at all.
    return "a part of it is protected" if name in rules.protected and not is_protected(machine.tags) else ""


def _gone(machine: ObservedResource, key: str, rules: Rules, now: datetime) -> str:
    """Why it should be gone; empty where it should not, or not yet.

    A committer chooses a commit's date: the grace begins no earlier than the machine's creation and last power-on.
    """
    since = rules.deleted.get(key)
    if since is None or key in rules.specs:
        return ""
    created = tags.moment({"time": str(machine.properties.get("timeCreated") or "")}, "time")
    begin = max(each for each in (since, created, tags.moment(machine.tags, tags.ON_SINCE)) if each)
    if begin + rules.grace > now:
        return ""
    return f"its spec was deleted at {stamp(since)}, more than {format_duration(rules.grace) or '0m'} ago"


def _causes(machine: ObservedResource, spec: Spec | None, gone: str, now: datetime) -> Iterator[str]:
    """Every reason why a machine that may be billed should be off."""
    if _is_being_made(machine, now):
        return
    why = why_over(machine.tags, now, _hours(machine, spec))
    if why:
        yield why
    # Also where somebody has moved the lease beyond it by hand.
    if _is_spent(machine, now) and "cost cap" not in why:
        yield "cost cap is reached"
    if machine.power not in ON:
        return  # Azure does not say that it is on
    if spec and spec.power == "deallocated":
        yield "its spec says `power: deallocated`"
    if machine.power == "stopped" and (changed_at(machine) or now - STOPPED_FOR) <= now - STOPPED_FOR:
        yield STOPPED
    if machine.state == "Failed":
        yield "provisioning failed, but billed"
    if gone:
        yield gone


def _is_being_made(machine: ObservedResource, now: datetime) -> bool:
    """Somebody is at it, and it has an end."""
    return machine.state in {"Creating", "Updating"} and not is_over(machine.tags, now)


def _is_spent(machine: ObservedResource, now: datetime) -> bool:
    since, terms = tags.moment(machine.tags, tags.ON_SINCE), terms_from_tag(tags.get(machine.tags, tags.TERMS))
    end = cap_end(since, terms) if since and terms else None
    return end is not None and end <= now


def _hours(machine: ObservedResource, spec: Spec | None) -> Hours | None:
    return (spec.lifecycle.hours if spec else None) or from_tag(tags.get(machine.tags, tags.HOURS))


def changed_at(machine: ObservedResource) -> datetime | None:
    """When the last operation on it ended, by its instance view; None where Azure does not say."""
    view = machine.properties.get("instanceView") or {}
    times = (
        status.get("time")
        for status in view.get("statuses") or []
        if str(status.get("code", "")).startswith("ProvisioningState/")
    )
    return tags.moment({"time": str(next(times, None) or "")}, "time")


def _is_before(moment: datetime | None, limit: datetime) -> bool:
    return moment is not None and moment <= limit


# Starting


def _start_until(machine: ObservedResource, spec: Spec, now: datetime) -> datetime | None:
    """Until when it may be on, if it should be switched on; None where it should not.

    Somebody who switched it off inside this stretch of hours meant it.
    """
    hours = spec.lifecycle.hours
    if hours is None or spec.power == "deallocated" or machine.power != "deallocated" or machine.state != "Succeeded":
        return None
    stretch = stretch_of(hours, now)
    if stretch is None or not _is_before(changed_at(machine), stretch[0]):
        return None
    terms = terms_from_tag(tags.get(machine.tags, tags.TERMS))
    end = cap_end(now, terms) if terms else None
    until = min(stretch[1], end or stretch[1])
    return until if until > now else None


def stretch_of(hours: Hours, now: datetime) -> tuple[datetime, datetime] | None:
    """When the stretch of hours that is now opened, and when it ends; None outside hours, and where it never ends."""
    closing = next_change(hours, now) if is_on(hours, now) else None
    if closing is None:
        return None
    opened, moment = None, now - HORIZON
    while (change := next_change(hours, moment)) and change[0] <= now:
        moment = change[0]
        opened = moment if change[1] else None
    return (opened, closing[0]) if opened else None
