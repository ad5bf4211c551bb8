"""Find our resources whose machine is gone, and decide what to do with them. All pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gpuinfra.models.reap import Orphan, ReapAction
from gpuinfra.models.resource import Kind
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import Listed
from gpuinfra.provision.market.price_list import address_per_month, disk_price
from gpuinfra.provision.observed_resource import ObservedResource
from gpuinfra.provision.ownership import LEFT_ALONE, has_our_name, is_leftover, left_alone
from gpuinfra.provision.reaping.decide import Rules

# `up` creates these resources before their machine.
AGE = timedelta(hours=1)
KINDS = frozenset({Kind.DISK, Kind.PUBLIC_IP, Kind.NIC, Kind.SHUTDOWN_SCHEDULE})
"""Kinds that cost money or act without a machine. VNets and NSGs do neither."""
CAUSE = "it has no machine"


def orphans(
    parts: Iterable[Listed], machines: Sequence[Mapping[str, Any]], rules: Rules, now: datetime
) -> list[Orphan]:
    """Return all orphans sorted by name. While any machine, ours or not, has the tagged name, there are none for it."""
    found = [_orphan(part, rules) for part in _lost(parts, machines, now) if is_leftover(part.ref, part.tags)]
    return sorted(found, key=lambda orphan: (orphan.name.casefold(), list(Kind).index(orphan.ref.kind)))


def lookalikes(parts: Sequence[Listed], machines: Sequence[Mapping[str, Any]], now: datetime) -> list[str]:
    """Describe each tagged resource that has an unexpected name, or that is an orphan outside the default group."""
    strange = [part for part in parts if _name(part) and not has_our_name(part.ref, part.tags)]
    lost = [part for part in _lost(parts, machines, now) if not is_leftover(part.ref, part.tags)]
    return [*(left_alone(part.ref, tags.get(part.tags, tags.NAME)) for part in strange), *map(_left_behind, lost)]


def _left_behind(part: Listed) -> str:
    """Describe a resource without a machine in a group that a spec names: it may be another user's."""
    ref, machine = part.ref, tags.get(part.tags, tags.NAME)
    # Without its machine, nothing proves whose data is on a disk: `down` does not delete it there.
    by_hand = f"az disk delete --resource-group {ref.group} --name {ref.name}"
    command = by_hand if ref.kind is Kind.DISK else "gpuinfra down SPEC --delete"
    removal = f"if it was created for that machine, `{command}` removes it"
    return f"{ref} in group {ref.group}: it has the tag of {machine}, but {CAUSE}; {removal}; {LEFT_ALONE}"


def _lost(parts: Iterable[Listed], machines: Sequence[Mapping[str, Any]], now: datetime) -> list[Listed]:
    """Return resources with our names whose machine does not exist."""
    taken = {str(row.get("name") or "").casefold() for row in machines}
    taken |= {tags.get(row.get("tags"), tags.NAME).casefold() for row in machines}
    lost = [part for part in parts if _name(part) and _name(part) not in taken]
    # A machine with a recently created resource is probably being created.
    fresh = {_name(part) for part in lost if part.since is None or part.since + AGE > now}
    named = [part for part in lost if part.ref.kind in KINDS and has_our_name(part.ref, part.tags)]
    return [part for part in named if _name(part) not in fresh]


def _name(part: Listed) -> str:
    return tags.get(part.tags, tags.NAME).casefold()


def _orphan(part: Listed, rules: Rules) -> Orphan:
    action, cause = _verdict(part, rules)
    price = address_per_month() if part.ref.kind is Kind.PUBLIC_IP else None
    return Orphan(tags.get(part.tags, tags.NAME), part.ref, action, cause, part.since, price)


def _verdict(part: Listed, rules: Rules) -> tuple[ReapAction, str]:
    """Return the decision for an orphan. A disk is deleted only on request, and never with unfetched outputs."""
    if tags.is_protected(part.tags):
        return ReapAction.PROTECTED, f"{CAUSE}, and is protected"
    if part.ref.kind is Kind.DISK and not rules.deletes:
        return ReapAction.KEEP, f"{CAUSE}, but data may be on it"
    if part.ref.kind is Kind.DISK and _name(part) in rules.unfetched:
        return ReapAction.KEEP, f"{CAUSE}, but outputs on it were not fetched"
    if part.ref.kind is Kind.DISK and _name(part) in rules.unknown:
        return ReapAction.KEEP, f"{CAUSE}, but it may hold outputs (`--yes` deletes it)"
    return ReapAction.DELETE, CAUSE


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
