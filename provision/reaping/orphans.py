"""Parts of ours that have lost their machine: which they are, and what should become of them. All pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gpuinfra.models.reap import Orphan, ReapAction
from gpuinfra.models.resource import Kind
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import ObservedResource
from gpuinfra.provision.lifecycle.reap import Rules, is_protected
from gpuinfra.provision.market.residue import address_per_month, disk_per_month
from gpuinfra.provision.ownership import has_our_name, is_leftover, left_alone
from gpuinfra.provision.reaping.port import Listed

# An `up` makes parts before the machine that they are for.
AGE = timedelta(hours=1)
KINDS = frozenset({Kind.DISK, Kind.PUBLIC_IP, Kind.NIC, Kind.SHUTDOWN_SCHEDULE})
"""What costs something, or does something, without a machine. Networks and security groups do neither."""
CAUSE = "it has no machine"


def orphans(
    parts: Iterable[Listed], machines: Sequence[Mapping[str, Any]], rules: Rules, now: datetime
) -> list[Orphan]:
    """All of them by name. A name counts as taken by any machine that is called so, ours or not."""
    found = [_orphan(part, rules) for part in _lost(parts, machines, now) if is_leftover(part.ref, part.tags)]
    return sorted(found, key=lambda orphan: (orphan.name.casefold(), list(Kind).index(orphan.ref.kind)))


def lookalikes(parts: Sequence[Listed], machines: Sequence[Mapping[str, Any]], now: datetime) -> list[str]:
    """A line for each tagged resource that is not named as a part of its machine, or has lost it in another group."""
    strange = [part for part in parts if _name(part) and not has_our_name(part.ref, part.tags)]
    lost = [part for part in _lost(parts, machines, now) if not is_leftover(part.ref, part.tags)]
    return [left_alone(part.ref, tags.get(part.tags, tags.NAME)) for part in (*strange, *lost)]


def _lost(parts: Iterable[Listed], machines: Sequence[Mapping[str, Any]], now: datetime) -> list[Listed]:
    """Parts that have our names, and no machine."""
    taken = {str(row.get("name") or "").casefold() for row in machines}
    taken |= {tags.get(row.get("tags"), tags.NAME).casefold() for row in machines}
    lost = [part for part in parts if _name(part) and _name(part) not in taken]
    # Where anything of a machine's has just been made, somebody is about to make the rest.
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
    """A disk holds data: it goes only where somebody says so, and never with outputs that nobody has fetched."""
    if is_protected(part.tags):
        return ReapAction.PROTECTED, f"{CAUSE}, and is protected"
    if part.ref.kind is Kind.DISK and not rules.deletes:
        return ReapAction.KEEP, f"{CAUSE}, but data may be on it"
    if part.ref.kind is Kind.DISK and _name(part) in rules.unfetched:
        return ReapAction.KEEP, f"{CAUSE}, but outputs on it were not fetched"
    if part.ref.kind is Kind.DISK and _name(part) in rules.unknown:
        return ReapAction.KEEP, f"{CAUSE}, but it may hold outputs (`--yes` deletes it)"
    return ReapAction.DELETE, CAUSE


def seen(orphan: Orphan, part: ObservedResource | None, interfaces: Collection[str] = ()) -> Orphan | None:
    """An orphan as a second look shows it; None where it is gone, in use, or not ours any more.

    `interfaces` are ids, case folded, of those that are orphans too: what they use goes with them.
    """
    if part is None or not tags.belongs_to(part.tags, orphan.name) or is_used(part, interfaces):
        return None
    if is_protected(part.tags):
        return replace(orphan, action=ReapAction.PROTECTED, cause=f"{CAUSE}, and is protected")
    if part.ref.kind is not Kind.DISK:
        return orphan
    sku = str((part.body.get("sku") or {}).get("name", ""))
    return replace(orphan, per_month=disk_per_month(int(part.properties.get("diskSizeGB") or 0), sku))


def is_used(part: ObservedResource, interfaces: Collection[str]) -> bool:
    """Whether a machine has it, or, of an address, anything but an interface that goes as well."""
    user = str((part.properties.get("ipConfiguration") or {}).get("id") or "").casefold()
    if user and not any(user.startswith(f"{each}/") for each in interfaces):
        return True
    return bool(part.body.get("managedBy") or part.properties.get("virtualMachine"))
