"""Compute what is recorded about a machine: its ledger entry at power-on, and the cost in its receipt."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from gpuinfra.models.ledger import LedgerEntry, LedgerEntryKind
from gpuinfra.models.offer import Rate
from gpuinfra.models.plan import Price
from gpuinfra.models.receipt import Receipt
from gpuinfra.provision import tags
from gpuinfra.provision.costing.activity import Event, changes, samples
from gpuinfra.provision.costing.facts import Facts
from gpuinfra.provision.costing.history import Present, cost_history
from gpuinfra.provision.costing.pricing import PriceBook
from gpuinfra.provision.market.port import Prices
from gpuinfra.provision.market.price_list import shipped_prices
from gpuinfra.provision.observed_resource import ObservedResource, standard_size


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


def add_cost(
    receipt: Receipt, events: Sequence[Event] | None, since: datetime, entries: Sequence[LedgerEntry]
) -> Receipt:
    """Return the receipt with the times and cost of the last time on. `events` is None if the log was not read.

    `entries` are this machine's only, including the end in this receipt.
    """
    facts = Facts(receipt.size, receipt.region, receipt.spot)
    found = cost_history(
        receipt.name,
        log=changes(events or ()),
        log_since=None if events is None else since,
        entries=entries,
        present=Present(facts),
        now=receipt.at,
        pricing=PriceBook(_prices(receipt), shipped_prices()),
        samples=samples(events or ()),
    )
    last = found.last_time_on
    if not last:
        return receipt
    return replace(
        receipt,
        billed_from=last[0].stretch.start.replace(microsecond=0),
        billed_to=last[-1].stretch.end.replace(microsecond=0),
        price_per_hour=last[-1].price if last[-1].price is not None else receipt.price_per_hour,
        cost_usd=found.last_cost,
    )


def _prices(receipt: Receipt) -> Prices:
    """Return today's price from the receipt, if it has one."""
    if receipt.price_per_hour is None or not receipt.size or not receipt.region:
        return Prices()
    price = receipt.price_per_hour
    rate = Rate(None, price) if receipt.spot else Rate(price)
    return Prices({(standard_size(receipt.size), receipt.region): rate})
