"""Decide what to do with a machine now, from its state alone, so that a late reaper catches up. All pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from gpuinfra.models.hours import Hours
from gpuinfra.models.json_values import stamp
from gpuinfra.models.quantities import format_duration
from gpuinfra.models.reap import ReapAction, ReapDecision
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.lifecycle.hours import HORIZON, hours_from_tag, is_on, next_change
from gpuinfra.provision.lifecycle.lease import cap_end, is_over, restarted_at, why_off
from gpuinfra.provision.lifecycle.terms import terms_from_tag
from gpuinfra.provision.names import machine_key
from gpuinfra.provision.observed_resource import DELETING, ObservedResource
from gpuinfra.provision.ownership import Owner, machine_of_row, owner_of
from gpuinfra.provision.power import BILLED, DEALLOCATED, NOT_BILLED, STOPPED, STOPPED_BUT_BILLED

# A machine that was only shut down is still billed. Wait this long, because a user may be about to start it again.
STOPPED_FOR = timedelta(minutes=15)
GRACE = timedelta(hours=24)
NOT_FROM_HERE = "left alone: its spec is not from this repository"


@dataclass(frozen=True)
class Rules:
    """What the decision depends on in addition to the machine and the time."""

    specs: Mapping[str, Spec] = field(default_factory=dict)
    """By the machine's key: see `names.machine_key`."""
    repository: str = ""
    """The ID of the specs' git repository. The specs apply only to machines whose tag has this ID."""
    deleted: Mapping[str, datetime] = field(default_factory=dict)
    """Keys of machines whose specs were deleted from git, with the time of deletion."""
    unfetched: frozenset[str] = frozenset()
    """Case-folded names of machines whose disks hold outputs that were not fetched."""
    unknown: frozenset[str] = frozenset()
    """Case-folded names of machines whose disk contents cannot be queried."""
    protected: frozenset[str] = frozenset()
    """Case-folded names of machines with a protected resource: a deletion would include it."""
    grace: timedelta = GRACE
    starts: bool = False
    deletes: bool = False


def decide_all(rows: Sequence[Mapping[str, Any]], rules: Rules, now: datetime) -> list[ReapDecision]:
    """Return one decision per machine that is ours, sorted by name."""
    found = [verdict for row in rows if (verdict := decide(machine_of_row(row), rules, now))]
    return sorted(found, key=lambda verdict: (verdict.name.casefold(), verdict.ref.group.casefold()))


def decide(machine: ObservedResource, rules: Rules, now: datetime) -> ReapDecision | None:
    """Return the decision for one machine, or None if it is not ours."""
    if owner_of(machine) is not Owner.OURS:
        return None
    name = machine.ref.name
    found = _decide(machine, name, rules if _is_from(machine, rules) else _without_specs(rules), now)
    if tags.is_protected(machine.tags) and found.action is not ReapAction.KEEP:
        return ReapDecision(name, machine.ref, ReapAction.PROTECTED, found.cause, found.action)
    return found


def disputed(rows: Sequence[Mapping[str, Any]], rules: Rules, now: datetime, option: str) -> list[str]:
    """Describe each machine that a spec of another repository would stop or start. `option` is added to commands."""
    if not rules.repository:
        return []  # the note about the folder already says so
    machines = [machine for row in rows if owner_of(machine := machine_of_row(row)) is Owner.OURS]
    found = []
    for machine in machines:
        name = machine.ref.name
        by_spec = _decide(machine, name, rules, now)
        if not _is_from(machine, rules) and by_spec != _decide(machine, name, _without_specs(rules), now):
            on_purpose = "to start it: gpuinfra up SPEC" if by_spec.action is ReapAction.START else _end(machine)
            where = f"{machine.ref} in group {machine.ref.group}"
            found.append(f"{where}: {by_spec.cause}; {NOT_FROM_HERE}; {on_purpose}{option}")
    return sorted(found)


def _end(machine: ObservedResource) -> str:
    return f"to end it: gpuinfra down {machine.ref.name}"


def _is_from(machine: ObservedResource, rules: Rules) -> bool:
    """Return whether the machine's spec is from this repository. Otherwise any team could stop any machine."""
    return bool(rules.repository) and tags.get(machine.tags, tags.REPOSITORY) == rules.repository


def _without_specs(rules: Rules) -> Rules:
    return replace(rules, specs={}, deleted={})


def _decide(machine: ObservedResource, name: str, rules: Rules, now: datetime) -> ReapDecision:
    keep = ReapDecision(name, machine.ref, ReapAction.KEEP)
    if machine.state == DELETING:
        return _unfinished_deletion(keep, machine, now)
    key = machine_key(machine.ref.group, name)
    spec, gone = rules.specs.get(key), _gone(machine, key, rules, now)
    if gone and rules.deletes and not _is_being_made(machine, now):
        return _deletion(keep, gone, machine, rules)
    if machine.power not in NOT_BILLED:
        causes = list(_causes(machine, spec, gone, now))
        return ReapDecision(name, machine.ref, ReapAction.STOP, "; ".join(causes)) if causes else keep
    if gone:
        return ReapDecision(name, machine.ref, ReapAction.KEEP, gone)
    until = _start_until(machine, spec, now) if rules.starts and spec else None
    if until is None:
        return keep
    return ReapDecision(name, machine.ref, ReapAction.START, "its hours have begun", until=until)


def _unfinished_deletion(keep: ReapDecision, machine: ObservedResource, now: datetime) -> ReapDecision:
    """Return STOP to repeat the deletion if the lease is over: Azure bills a VM until its deletion is complete."""
    causes = [] if machine.power in NOT_BILLED else [*_causes(machine, None, "", now)]
    if not causes:
        return keep
    return ReapDecision(keep.name, keep.ref, ReapAction.STOP, "; ".join([*causes, "its deletion has not ended"]))


def _deletion(keep: ReapDecision, gone: str, machine: ObservedResource, rules: Rules) -> ReapDecision:
    why = _why_not_deleted(keep.name.casefold(), machine, rules)
    if not why:
        return ReapDecision(keep.name, keep.ref, ReapAction.DELETE, gone)
    action = ReapAction.KEEP if machine.power in NOT_BILLED else ReapAction.STOP
    return ReapDecision(keep.name, keep.ref, action, f"{gone}; {why}, so it is not deleted")


def _why_not_deleted(name: str, machine: ObservedResource, rules: Rules) -> str:
    if name in rules.unfetched:
        # A teardown must never lose outputs: stop the machine and keep its disk.
        return "outputs on its disk were not fetched"
    if name in rules.unknown:
        return "it cannot be asked for its runs, and its disk may hold outputs (`--yes` deletes it)"
    # A machine with its own protect tag is not changed at all.
    return (
        "one of its resources is protected" if name in rules.protected and not tags.is_protected(machine.tags) else ""
    )


def _gone(machine: ObservedResource, key: str, rules: Rules, now: datetime) -> str:
    """Return why the machine should be deleted, or an empty string if not, or not yet.

    The committer chooses a commit's date, so the grace period begins no earlier than the VM's creation and last
    power-on.
    """
    since = rules.deleted.get(key)
    if since is None or key in rules.specs:
        return ""
    begin = max(each for each in (since, machine.created, tags.moment(machine.tags, tags.ON_SINCE)) if each)
    if begin + rules.grace > now:
        return ""
    return f"its spec was deleted at {stamp(since)}, more than {format_duration(rules.grace) or '0m'} ago"


def _causes(machine: ObservedResource, spec: Spec | None, gone: str, now: datetime) -> Iterator[str]:
    """Yield every reason why a machine that may be billed should be off."""
    if _is_being_made(machine, now):
        return
    why = why_off(machine, now, _hours(machine, spec))
    if why:
        yield why
    # Check the cap itself, because the lease tag may have been changed by hand.
    if _is_spent(machine, now) and "cost cap" not in why:
        yield "cost cap is reached"
    if machine.power not in BILLED:
        return  # Azure does not show that it is on
    if spec and spec.power == "deallocated":
        yield "its spec says `power: deallocated`"
    if machine.power == STOPPED and (machine.changed or now - STOPPED_FOR) <= now - STOPPED_FOR:
        yield STOPPED_BUT_BILLED
    if machine.state == "Failed":
        yield "provisioning failed, but billed"
    if gone:
        yield gone


def _is_being_made(machine: ObservedResource, now: datetime) -> bool:
    """Return whether a creation or update is in progress and the lease is still valid."""
    return machine.state in {"Creating", "Updating"} and not is_over(machine.tags, now)


def _is_spent(machine: ObservedResource, now: datetime) -> bool:
    since = restarted_at(machine) or tags.moment(machine.tags, tags.ON_SINCE)
    terms = terms_from_tag(tags.get(machine.tags, tags.TERMS))
    end = cap_end(since, terms) if since and terms else None
    return end is not None and end <= now


def _hours(machine: ObservedResource, spec: Spec | None) -> Hours | None:
    return (spec.lifecycle.hours if spec else None) or hours_from_tag(tags.get(machine.tags, tags.HOURS))


def _is_before(moment: datetime | None, limit: datetime) -> bool:
    return moment is not None and moment <= limit


# Start


def _start_until(machine: ObservedResource, spec: Spec, now: datetime) -> datetime | None:
    """Return until when the machine may be on if it should be started now, or None.

    A machine that was switched off during the current hours stays off: a user did that on purpose.
    """
    hours = spec.lifecycle.hours
    if hours is None or spec.power == "deallocated" or machine.power != DEALLOCATED or machine.state != "Succeeded":
        return None
    stretch = stretch_of(hours, now)
    if stretch is None or not _is_before(machine.changed, stretch[0]):
        return None
    terms = terms_from_tag(tags.get(machine.tags, tags.TERMS))
    end = cap_end(now, terms) if terms else None
    until = min(stretch[1], end or stretch[1])
    return until if until > now else None


def stretch_of(hours: Hours, now: datetime) -> tuple[datetime, datetime] | None:
    """Return when the current period of the hours began and ends; None outside hours, or if it never ends."""
    closing = next_change(hours, now) if is_on(hours, now) else None
    if closing is None:
        return None
    opened, moment = None, now - HORIZON
    while (change := next_change(hours, moment)) and change[0] <= now:
        moment = change[0]
        opened = moment if change[1] else None
    return (opened, closing[0]) if opened else None
