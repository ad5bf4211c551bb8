"""Prices by the hour, the cost of ledger entries, and the rows of a cost report."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from itertools import pairwise

from gpuinfra.models.cost import Amounts, Certainty, CostRow, Source, least_certain
from gpuinfra.models.plan import Price
from gpuinfra.models.receipt import LedgerEntry, LedgerEntryKind, Receipt
from gpuinfra.models.sizes import Rate
from gpuinfra.provision import tags
from gpuinfra.provision.costing.activity import Event, changes, samples
from gpuinfra.provision.costing.history import CostHistory, Piece, Present, cost_history, ledger_samples
from gpuinfra.provision.costing.timeline import Facts, FactsTimeline
from gpuinfra.provision.lease import BACKSTOP
from gpuinfra.provision.market import DATE, Prices, shipped_prices
from gpuinfra.provision.observed_resource import ObservedResource, standard_size

RECORDED = "recorded when the machine was switched on"
TODAY = "Azure's price list of today"
SHIPPED = f"the list of {DATE} that comes with gpuinfra"
UNKNOWN = "not known for all of the time"


class PriceBook:
    """A price lookup that remembers the origin of the prices used."""

    def __init__(self, today: Prices, shipped: Prices) -> None:
        self._today, self._shipped = today, shipped
        self._used: dict[str, None] = {}

    @property
    def used(self) -> tuple[str, ...]:
        """The origins of the prices returned so far."""
        return tuple(self._used)

    def __call__(self, facts: Facts) -> float | None:
        """Return US dollars per hour, or None if unknown."""
        if facts.price is not None:
            return self._from(RECORDED, facts.price)
        size, region = standard_size(facts.size or ""), facts.region or ""
        for words, prices in ((TODAY, self._today), (SHIPPED, self._shipped)):
            price = prices.price(size, region, spot=facts.spot)
            if price is not None:
                return self._from(words, price)
        return self._from(UNKNOWN, None)

    def _from(self, words: str, price: float | None) -> float | None:
        self._used[words] = None
        return price


IDLE = "idle"
NO_TAG = "-"


@dataclass(frozen=True, slots=True)
class Job:
    """A run: its machine, and when its job started and ended."""

    id: str
    machine: str
    started: datetime
    ended: datetime
    is_over: bool = True
    """If False, the job still runs as far as known, and `ended` is the report's time."""


def by_machine(histories: Iterable[CostHistory], since: datetime, until: datetime) -> list[CostRow]:
    """Return one row per machine that cost anything, priced or not."""
    rows = (_row(each, since, until) for each in histories)
    return sorted((row for row in rows if _matters(row.amounts)), key=lambda row: (-row.amounts.total, row.label))


def _row(each: CostHistory, since: datetime, until: datetime) -> CostRow:
    return CostRow(
        label=each.name,
        amounts=each.amounts(since, until),
        machine=each.name,
        size=each.facts.size,
        region=each.facts.region,
        spot=each.facts.spot,
        is_on=each.is_on,
        sources=each.sources(since, until),
        sure=each.sure(since, until),
    )


def _matters(amounts: Amounts) -> bool:
    return bool(amounts.seconds or amounts.total or amounts.possible or amounts.possible_total or amounts.missing)


def by_tag(histories: Iterable[CostHistory], tag: str, since: datetime, until: datetime) -> list[CostRow]:
    """Return one row per value of a tag. Machines without the tag share one row."""
    groups: dict[str, list[CostHistory]] = {}
    for each in histories:
        values = (value for name, value in each.tags.items() if name.casefold() == tag.casefold())
        groups.setdefault(next(values, NO_TAG), []).append(each)
    rows = [_together(label, by_machine(group, since, until)) for label, group in groups.items()]
    return sorted((row for row in rows if _matters(row.amounts)), key=lambda row: (-row.amounts.total, row.label))


def _together(label: str, rows: Sequence[CostRow]) -> CostRow:
    return CostRow(
        label=label,
        amounts=sum((row.amounts for row in rows), Amounts()),
        is_on=any(row.is_on for row in rows),
        sources=tuple(dict.fromkeys(source for row in rows for source in row.sources)),
        sure=least_certain(row.sure for row in rows),
    )


def by_run(histories: Iterable[CostHistory], jobs: Sequence[Job], since: datetime, until: datetime) -> list[CostRow]:
    """Return one row per run with its share of the machine's cost, and one per machine with the remaining cost.

    Concurrent runs share the cost. The machine's own row has the cost of disk and public IP.
    """
    rows: list[CostRow] = []
    for each in histories:
        whole = _row(each, since, until)
        if not _matters(whole.amounts):
            continue
        own = [job for job in jobs if job.machine.casefold() == each.name.casefold()]
        shares = dict[str, Amounts]()
        for piece in each.pieces:
            _share(each, piece, own, (since, until), shares)
        sources = (*whole.sources, Source.RUNS)
        for job in (job for job in own if job.id in shares):
            # Azure's log covers machines only; the run record has the job's times.
            times = Certainty.RECORDED if job.is_over else Certainty.ESTIMATED
            sure = least_certain([each.compute_sure(since, until), times])
            rows.append(replace(whole, label=job.id, amounts=shares[job.id], sources=sources, sure=sure))
        if shares:
            runs = (row.sure for row in rows[-len(shares) :])
            whole = replace(whole, sources=sources, sure=least_certain([whole.sure, *runs]))
        rows.append(replace(whole, label=f"{each.name} ({IDLE})", amounts=_rest(whole.amounts, shares.values())))
    return rows


def cost_by_ledger(entries: Sequence[LedgerEntry], jobs: Sequence[Job]) -> dict[str, float]:
    """Return the cost of each run from the ledger alone, by run ID, assuming that the machines were on all the time.

    Otherwise this counts like `by_run`. Runs with an unknown price are omitted.
    """
    book, found = PriceBook(Prices(), shipped_prices()), dict[str, float]()
    for machine in {job.machine.casefold() for job in jobs}:
        own = [job for job in jobs if job.machine.casefold() == machine]
        noted = ledger_samples([entry for entry in entries if entry.machine.casefold() == machine])
        facts, unknown = FactsTimeline((), noted, None, None), set[str]()
        start, end = min(job.started for job in own), max(job.ended for job in own)
        for one, other in _spans(start, end, own, facts.cuts(start, end)):
            running, price = _running(own, one, other), book(facts.at(one)[0])
            unknown |= {job.id for job in running if price is None}
            for job in running:
                hours = (other - one).total_seconds() / 3600 / len(running)
                found[job.id] = found.get(job.id, 0.0) + hours * (price or 0.0)
        found = {job: cost for job, cost in found.items() if job not in unknown}
    return found


def _running(jobs: Sequence[Job], start: datetime, end: datetime) -> list[Job]:
    return [job for job in jobs if job.started <= start and end <= job.ended]


def _share(
    own: CostHistory, piece: Piece, jobs: Sequence[Job], span: tuple[datetime, datetime], shares: dict[str, Amounts]
) -> None:
    """Divide the cost of a piece equally among the jobs that ran at each time."""
    start, end = max(piece.stretch.start, span[0]), min(piece.stretch.end, span[1])
    for one, other in _spans(start, end, jobs):
        running = _running(jobs, one, other)
        seconds = (other - one).total_seconds() / max(1, len(running))
        unpriced = seconds if piece.price is None else 0.0
        paid = seconds / 3600 * (piece.price or 0.0)
        is_certain = piece.stretch.is_certain
        # Savings are counted once, in the machine's own row: a run gets only its share of the always-on cost.
        whole, count = own.amounts(one, other), max(1, len(running))
        part = Amounts(
            seconds=seconds if is_certain else 0.0,
            compute=paid if is_certain else 0.0,
            possible=0.0 if is_certain else seconds,
            possible_compute=0.0 if is_certain else paid,
            always_on=whole.always_on / count,
            there=whole.there / count,
            unpriced=unpriced,
        )
        for job in running:
            shares[job.id] = shares.get(job.id, Amounts()) + part


def _spans(
    start: datetime, end: datetime, jobs: Sequence[Job], more: Sequence[datetime] = ()
) -> Iterator[tuple[datetime, datetime]]:
    """Split a span where a job starts or ends, and at the `more` times."""
    if start >= end:
        return
    cuts = {*more} | {moment for job in jobs for moment in (job.started, job.ended) if start < moment < end}
    yield from pairwise(sorted({start, end, *cuts}))


def _rest(whole: Amounts, shares: Iterable[Amounts]) -> Amounts:
    used = sum(shares, Amounts())
    return Amounts(*(max(0.0, getattr(whole, each.name) - getattr(used, each.name)) for each in fields(Amounts)))


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


def record_of(
    receipt: Receipt, events: Sequence[Event] | None, since: datetime, entries: Sequence[LedgerEntry], subscription: str
) -> list[LedgerEntry]:
    """Return all that is known about a machine's times on, for readers without these entries and, later, this log.

    The arguments are as for `add_cost`; the entries include the end in this receipt.
    """
    found = cost_history(
        receipt.name,
        log=changes(events or ()),
        log_since=None if events is None else since,
        entries=entries,
        present=None if receipt.deletes else Present(Facts(receipt.size, receipt.region, receipt.spot)),
        now=receipt.at,
        pricing=PriceBook(_prices(receipt), shipped_prices()),
        samples=samples(events or ()),
    )
    disk = next((each.disk_per_month for each in reversed(entries) if each.disk_per_month is not None), None)
    address = next((each.address_per_month for each in reversed(entries) if each.address_per_month is not None), None)
    common = LedgerEntry(
        LedgerEntryKind.GONE,
        max((each.stretch.end for each in found.holdings), default=receipt.at),
        receipt.name,
        receipt.group,
        subscription,
        receipt.region,
        receipt.size,
        receipt.spot,
        disk_per_month=disk,
        address_per_month=address,
        tags=found.tags,
        simulated=receipt.simulated,
    )
    times = [_time_on(piece, common) for piece in found.pieces]
    return [*times, common] if receipt.deletes else times


def _time_on(piece: Piece, common: LedgerEntry) -> LedgerEntry:
    """Return the entry of a time on. If its end is not known, only the start and the latest end are recorded."""
    start, end, facts = piece.stretch.start, piece.stretch.end, piece.facts
    entry = replace(
        common,
        region=facts.region or common.region,
        size=facts.size or common.size,
        spot=facts.spot,
        price_per_hour=piece.price,
    )
    if piece.stretch.is_certain:
        return replace(entry, what=LedgerEntryKind.OFF, at=end, since=start)
    return replace(entry, what=LedgerEntryKind.ON, at=start, lease_until=max(start, end - BACKSTOP))


def _prices(receipt: Receipt) -> Prices:
    """Return today's price from the receipt, if it has one."""
    if receipt.price_per_hour is None or not receipt.size or not receipt.region:
        return Prices()
    price = receipt.price_per_hour
    rate = Rate(None, price) if receipt.spot else Rate(price)
    return Prices({(standard_size(receipt.size), receipt.region): rate})
