"""What the ledger keeps of a machine that was switched on."""

from __future__ import annotations

from datetime import datetime

from gpuinfra.models.entry import Entry, EntryKind
from gpuinfra.models.plan import Price
from gpuinfra.models.tags import OUR_PREFIX
from gpuinfra.provision import tags
from gpuinfra.provision.cloud import ObservedResource


def beginning(
    machine: ObservedResource, price: Price, *, at: datetime | None, subscription: str, simulated: bool
) -> Entry | None:
    """An entry from a machine's own body: it was switched on when its tag says, or changed `at` this moment.

    None where nothing says when.
    """
    since = at or tags.moment(machine.tags, tags.ON_SINCE)
    if since is None:
        return None
    return Entry(
        what=EntryKind.CHANGED if at else EntryKind.ON,
        at=since,
        machine=tags.get(machine.tags, tags.NAME) or machine.ref.name,
        group=machine.ref.group,
        subscription=subscription,
        region=machine.region,
        size=str((machine.properties.get("hardwareProfile") or {}).get("vmSize") or "") or None,
        spot=is_spot(machine),
        # One of an old list was not the price at the time; whoever counts later may know better.
        price_per_hour=None if price.list_of else price.per_hour,
        disk_per_month=price.disk_per_month,
        address_per_month=price.address_per_month,
        lease_until=tags.moment(machine.tags, tags.LEASE_UNTIL),
        tags=own_tags(machine),
        simulated=simulated,
    )


def own_tags(part: ObservedResource) -> dict[str, str]:
    """The user's tags, without ours."""
    return {name: value for name, value in part.tags.items() if not name.casefold().startswith(OUR_PREFIX)}


def is_spot(part: ObservedResource) -> bool:
    """Whether a machine is paid for at the price of spot."""
    return str(part.properties.get("priority") or "").casefold() == "spot"
