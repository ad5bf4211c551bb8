"""Decide what to do with a machine now, from its state alone, so that a late reaper catches up. All pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from gpuinfra.models.base import format_duration
from gpuinfra.models.hours import Hours
from gpuinfra.models.json_values import stamp
from gpuinfra.models.plan import Kind
from gpuinfra.models.reap import Orphan, ReapAction, ReapDecision
from gpuinfra.models.spec import Spec
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Listed
from gpuinfra.provision.lease import (
    HORIZON,
    cap_end,
    hours_from_tag,
    is_on,
    is_over,
    next_change,
    restarted_at,
    terms_from_tag,
    why_off,
)
from gpuinfra.provision.market import address_per_month, disk_price
from gpuinfra.provision.observed_resource import DELETING, ObservedResource
from gpuinfra.provision.ownership import (
    LEFT_ALONE,
    Owner,
    has_our_name,
    is_leftover,
    left_alone,
    machine_of_row,
    owner_of,
)
from gpuinfra.provision.power import BILLED, DEALLOCATED, NOT_BILLED, STOPPED, STOPPED_BUT_BILLED
from gpuinfra.provision.tags import machine_key

# A machine that was only shut down is still billed. Wait this long, because a user may be about to start it again.
STOPPED_FOR = timedelta(minutes=15)
GRACE = timedelta(hours=24)
UNFETCHED = "outputs on its disk were not fetched"
UNKNOWN = "nothing confirms that all outputs on its disk were fetched"
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
    off_since: Mapping[tuple[str, datetime | None], datetime] = field(default_factory=dict)
    """By the machine's key and its last change: when it was switched off, if that is not its last change."""
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


def changed_while_off(rows: Sequence[Mapping[str, Any]], rules: Rules, now: datetime) -> list[ObservedResource]:
    """Return the machines that are not started only because they changed during their hours.

    They may have been switched off before, and only Azure's daily schedule has fired since then.
    """
    machines = [machine_of_row(row) for row in rows] if rules.starts else []
    known = {last_change(each): datetime.min.replace(tzinfo=UTC) for each in machines}
    before = replace(rules, off_since=known)
    return [
        each
        for each in machines
        if (verdict := decide(each, before, now))
        and verdict.action is ReapAction.START
        and decide(each, rules, now) != verdict
    ]


def last_change(machine: ObservedResource) -> tuple[str, datetime | None]:
    """Return the machine's key and when Azure last changed it."""
    return machine_key(machine.ref.group, machine.ref.name), machine.changed


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
    since = rules.off_since.get(last_change(machine), machine.changed)
    until = _start_until(machine, spec, since, now) if rules.starts and spec else None
    if until is None:
        return keep
    terms = terms_from_tag(tags.get(machine.tags, tags.TERMS))
    idle = (
        f"; it goes off after {format_duration(terms.idle)} without use" if terms and now + terms.idle < until else ""
    )
    return ReapDecision(name, machine.ref, ReapAction.START, f"its hours have begun{idle}", until=until)


def _unfinished_deletion(keep: ReapDecision, machine: ObservedResource, now: datetime) -> ReapDecision:
    """Return STOP to repeat the deletion if the lease is over: Azure bills a VM until its deletion is complete."""
    causes = [] if machine.power in NOT_BILLED else [*_causes(machine, None, "", now)]
    if not causes:
        return keep
    return ReapDecision(keep.name, keep.ref, ReapAction.STOP, "; ".join([*causes, "its deletion has not ended"]))


def _deletion(keep: ReapDecision, gone: str, machine: ObservedResource, rules: Rules) -> ReapDecision:
    name = keep.name.casefold()
    # A machine with its own protect tag is not changed at all.
    if name in rules.protected and not tags.is_protected(machine.tags):
        why = "one of its resources is protected, so it is not deleted"
        return replace(keep, action=_off_action(machine), cause=f"{gone}; {why}")
    if why := why_kept(name, rules):
        # A teardown must never lose outputs: stop the machine and keep its disk.
        return replace(keep, action=_off_action(machine), cause=gone, not_deleted=why)
    return replace(keep, action=ReapAction.DELETE, cause=gone)


def _off_action(machine: ObservedResource) -> ReapAction:
    return ReapAction.KEEP if machine.power in NOT_BILLED else ReapAction.STOP


def why_kept(name: str, rules: Rules) -> str:
    """Return why the disk of a machine must be kept, or an empty string. `name` is case-folded."""
    if name in rules.unfetched:
        return UNFETCHED
    return UNKNOWN if name in rules.unknown else ""


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
def _start_until(machine: ObservedResource, spec: Spec, off_since: datetime | None, now: datetime) -> datetime | None:
    """Return until when the machine may be on if it should be started now, or None.

    A machine that was switched off during the current hours stays off: a user did that on purpose.
    """
    hours = spec.lifecycle.hours
    if hours is None or spec.power == "deallocated" or machine.power != DEALLOCATED or machine.state != "Succeeded":
        return None
    stretch = stretch_of(hours, now)
    if stretch is None or not _is_before(off_since, stretch[0]):
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


# `up` creates these resources before their machine.
AGE = timedelta(hours=1)
KINDS = frozenset({Kind.DISK, Kind.PUBLIC_IP, Kind.NIC, Kind.SHUTDOWN_SCHEDULE})
"""Kinds that cost money or act without a machine. VNets and NSGs do neither."""
CAUSE = "it has no machine"


def orphans(
    parts: Iterable[Listed], machines: Sequence[Mapping[str, Any]], rules: Rules, now: datetime
) -> list[Orphan]:
    """Return all orphans sorted by name. While any machine, ours or not, has the tagged name, there are none for it."""
    found = [_orphan(part, rules) for part in lost(parts, machines, now) if is_leftover(part.ref, part.tags)]
    return sorted(found, key=lambda orphan: (orphan.name.casefold(), list(Kind).index(orphan.ref.kind)))


def lookalikes(parts: Sequence[Listed], machines: Sequence[Mapping[str, Any]], now: datetime) -> list[str]:
    """Describe each tagged resource that has an unexpected name, or that is an orphan outside the default group."""
    strange = [part for part in parts if _name(part) and not has_our_name(part.ref, part.tags)]
    without = [part for part in lost(parts, machines, now) if not is_leftover(part.ref, part.tags)]
    return [*(left_alone(part.ref, tags.get(part.tags, tags.NAME)) for part in strange), *map(_left_behind, without)]


def _left_behind(part: Listed) -> str:
    """Describe a resource without a machine in a group that a spec names: it may be another user's."""
    ref, machine = part.ref, tags.get(part.tags, tags.NAME)
    # Without its machine, nothing proves whose data is on a disk: `down` does not delete it there.
    by_hand = f"az disk delete --resource-group {ref.group} --name {ref.name}"
    command = by_hand if ref.kind is Kind.DISK else "gpuinfra down SPEC --delete"
    removal = f"if it was created for that machine, `{command}` removes it"
    return f"{ref} in group {ref.group}: it has the tag of {machine}, but {CAUSE}; {removal}; {LEFT_ALONE}"


def lost(
    parts: Iterable[Listed], machines: Sequence[Mapping[str, Any]], now: datetime, age: timedelta = AGE
) -> list[Listed]:
    """Return resources with our names whose machine does not exist, and which are at least this old."""
    taken = {str(row.get("name") or "").casefold() for row in machines}
    taken |= {tags.get(row.get("tags"), tags.NAME).casefold() for row in machines}
    alone = [part for part in parts if _name(part) and _name(part) not in taken]
    # A machine with a recently created resource is probably being created.
    fresh = {_name(part) for part in alone if part.since is None or part.since + age > now}
    named = [part for part in alone if part.ref.kind in KINDS and has_our_name(part.ref, part.tags)]
    return [part for part in named if _name(part) not in fresh]


def _name(part: Listed) -> str:
    return tags.get(part.tags, tags.NAME).casefold()


def _orphan(part: Listed, rules: Rules) -> Orphan:
    """Return the decision for an orphan. A disk is deleted only on request, and never with unfetched outputs."""
    price = address_per_month() if part.ref.kind is Kind.PUBLIC_IP else None
    found = Orphan(tags.get(part.tags, tags.NAME), part.ref, ReapAction.DELETE, CAUSE, part.since, price)
    if tags.is_protected(part.tags):
        return replace(found, action=ReapAction.PROTECTED, cause=f"{CAUSE}, and is protected")
    if part.ref.kind is not Kind.DISK:
        return found
    if not rules.deletes:
        return replace(found, action=ReapAction.KEEP, cause=f"{CAUSE}, but data may be on it")
    if why := why_kept(_name(part), rules):
        return replace(found, action=ReapAction.KEEP, not_deleted=why)
    return found


def seen(orphan: Orphan, part: ObservedResource | None, interfaces: Collection[str] = ()) -> Orphan | None:
    """Return an orphan after a second look, or None if it is gone, in use, or no longer ours.

    `interfaces` are the case-folded IDs of orphaned NICs: a public IP that only they use is still an orphan.
    """
    if part is None or not tags.belongs_to(part.tags, orphan.name) or is_used(part, interfaces):
        return None
    if tags.is_protected(part.tags):
        return replace(orphan, action=ReapAction.PROTECTED, cause=f"{CAUSE}, and is protected")
    if part.ref.kind is not Kind.DISK:
        return orphan
    return replace(orphan, per_month=disk_price(part))


def is_used(part: ObservedResource, interfaces: Collection[str]) -> bool:
    """Return whether a VM uses the resource or, for a public IP, anything except an orphaned NIC."""
    user = str((part.properties.get("ipConfiguration") or {}).get("id") or "").casefold()
    if user and not any(user.startswith(f"{each}/") for each in interfaces):
        return True
    return bool(part.body.get("managedBy") or part.properties.get("virtualMachine"))
