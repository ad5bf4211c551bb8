"""Create the ledger entry for a machine that was switched on."""

from __future__ import annotations

from datetime import datetime

from gpuinfra.models.ledger import LedgerEntry, LedgerEntryKind
from gpuinfra.models.plan import Price
from gpuinfra.provision import tags
from gpuinfra.provision.observed_resource import ObservedResource


def power_on_entry(
    machine: ObservedResource, price: Price, *, at: datetime | None, subscription: str, simulated: bool
) -> LedgerEntry | None:
    """Return an entry from the VM's body: switched on at the time in its tag, or changed at `at`.

    Return None if the time is unknown.
    """
    since = at or tags.moment(machine.tags, tags.ON_SINCE)
    if since is None:
        return None
    return LedgerEntry(
        what=LedgerEntryKind.CHANGED if at else LedgerEntryKind.ON,
        at=since,
        machine=tags.get(machine.tags, tags.NAME) or machine.ref.name,
        group=machine.ref.group,
        subscription=subscription,
        region=machine.region,
        size=machine.size or None,
        spot=machine.is_spot,
        # A price from an old list was not the actual price, so leave it to a later calculation.
        price_per_hour=None if price.list_of else price.per_hour,
        disk_per_month=price.disk_per_month,
        address_per_month=price.address_per_month,
        lease_until=tags.moment(machine.tags, tags.LEASE_UNTIL),
        tags=machine.other_tags,
        simulated=simulated,
    )
