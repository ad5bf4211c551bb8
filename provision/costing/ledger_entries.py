"""Create the ledger entry for a machine that was switched on."""

from __future__ import annotations

from datetime import datetime

from gpuinfra.models.ledger import LedgerEntry, LedgerEntryKind
from gpuinfra.models.plan import Price
from gpuinfra.models.tags import OUR_PREFIX
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
        size=str((machine.properties.get("hardwareProfile") or {}).get("vmSize") or "") or None,
        spot=is_spot(machine),
        # A price from an old list was not the actual price, so leave it to a later calculation.
        price_per_hour=None if price.list_of else price.per_hour,
        disk_per_month=price.disk_per_month,
        address_per_month=price.address_per_month,
        lease_until=tags.moment(machine.tags, tags.LEASE_UNTIL),
        tags=own_tags(machine),
        simulated=simulated,
    )


def own_tags(part: ObservedResource) -> dict[str, str]:
    """Return the user's tags, without ours."""
    return {name: value for name, value in part.tags.items() if not name.casefold().startswith(OUR_PREFIX)}


def is_spot(part: ObservedResource) -> bool:
    """Return whether the VM is billed at the spot price."""
    return str(part.properties.get("priority") or "").casefold() == "spot"
