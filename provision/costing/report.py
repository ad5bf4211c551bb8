"""The lines of a report: by machine, by run, or by the value of a tag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from gpuinfra.models.cost import Amounts, Certainty, CostRow, Source, least_sure
from gpuinfra.models.entry import Entry
from gpuinfra.provision.costing.facts import FactsTimeline
from gpuinfra.provision.costing.history import History, Piece, ledger_samples
from gpuinfra.provision.costing.pricing import PriceBook
from gpuinfra.provision.market.port import Prices
from gpuinfra.provision.market.price_list import shipped_prices

IDLE = "idle"
NO_TAG = "-"


@dataclass(frozen=True, slots=True)
class Job:
    """A run: on which machine, from when to when its job was at work."""

    id: str
    machine: str
    started: datetime
    ended: datetime
    is_over: bool = True
    """Otherwise it runs, as far as is known, and `ended` is the moment of the report."""


def by_machine(histories: Iterable[History], since: datetime, until: datetime) -> list[CostRow]:
    """A line a machine, of those that cost anything or were there."""
    rows = (_row(each, since, until) for each in histories)
    return sorted((row for row in rows if _matters(row.amounts)), key=lambda row: (-row.amounts.total, row.label))


def _row(each: History, since: datetime, until: datetime) -> CostRow:
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
    return amounts.seconds > 0 or amounts.total > 0


def by_tag(histories: Iterable[History], tag: str, since: datetime, until: datetime) -> list[CostRow]:
    """A line for each value of a tag; machines that do not have it are together on one."""
    groups: dict[str, list[History]] = {}
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
        sure=least_sure(row.sure for row in rows),
    )


def by_run(histories: Iterable[History], jobs: Sequence[Job], since: datetime, until: datetime) -> list[CostRow]:
    """A line a run, with what its machine cost while it ran; and for each machine one with the rest of its time.

    Runs that were there at the same time share it. What disk and address cost is in the machine's own line.
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
            # Azure knows of machines. When a job ran, the record of the run says.
            sure = least_sure([whole.sure, Certainty.RECORDED if job.is_over else Certainty.ESTIMATED])
            rows.append(replace(whole, label=job.id, amounts=shares[job.id], sources=sources, sure=sure))
        if shares:
            whole = replace(whole, sources=sources, sure=least_sure(row.sure for row in rows[-len(shares) :]))
        rows.append(replace(whole, label=f"{each.name} ({IDLE})", amounts=_rest(whole.amounts, shares.values())))
    return rows


def cost_by_ledger(entries: Sequence[Entry], jobs: Sequence[Job]) -> dict[str, float]:
    """What runs cost by the ledger alone, by their ids: as `by_run` counts, for machines that were on all the time.

    A run without a known price is not among them.
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
    own: History, piece: Piece, jobs: Sequence[Job], span: tuple[datetime, datetime], shares: dict[str, Amounts]
) -> None:
    """Give each moment of a piece to the jobs that ran then, in equal parts."""
    start, end = max(piece.stretch.start, span[0]), min(piece.stretch.end, span[1])
    for one, other in _spans(start, end, jobs):
        running = _running(jobs, one, other)
        seconds = (other - one).total_seconds() / max(1, len(running))
        unpriced = seconds if piece.price is None else 0.0
        paid = seconds / 3600 * (piece.price or 0.0)
        # What is saved is on the line of the rest, and once: of the always-on sum, a run has what falls into its time.
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
    """The span, cut wherever a job begins or ends, and at `more` moments."""
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
