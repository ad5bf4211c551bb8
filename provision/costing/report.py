"""Create the rows of a cost report, by machine, by run or by tag value."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from gpuinfra.models.cost import Amounts, Certainty, CostRow, Source, least_certain
from gpuinfra.models.ledger import LedgerEntry
from gpuinfra.provision.costing.facts import FactsTimeline
from gpuinfra.provision.costing.history import CostHistory, Piece, ledger_samples
from gpuinfra.provision.costing.pricing import PriceBook
from gpuinfra.provision.market.port import Prices
from gpuinfra.provision.market.price_list import shipped_prices

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
    return amounts.seconds > 0 or amounts.total > 0 or bool(amounts.missing)


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
        # Savings are counted once, in the machine's own row: a run gets only its share of the always-on cost.
        whole, count = own.amounts(one, other), max(1, len(running))
        part = Amounts(
            seconds=seconds,
            compute=paid,
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
    return replace(
        whole,
        seconds=max(0.0, whole.seconds - used.seconds),
        compute=max(0.0, whole.compute - used.compute),
        always_on=max(0.0, whole.always_on - used.always_on),
        there=max(0.0, whole.there - used.there),
        unpriced=max(0.0, whole.unpriced - used.unpriced),
    )
