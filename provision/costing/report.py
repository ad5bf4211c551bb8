"""The lines of a report: by machine, by run, or by the value of a tag."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise

from gpuinfra.models.cost import Amounts, CostRow, least_sure
from provision.costing.history import History, Piece

IDLE = "idle"
NO_TAG = "-"


@dataclass(frozen=True, slots=True)
class Job:
    """A run: on which machine, from when to when its job was at work."""

    id: str
    machine: str
    started: datetime
    ended: datetime


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
        rows += [replace(whole, label=job.id, amounts=shares[job.id]) for job in own if job.id in shares]
        rows.append(replace(whole, label=f"{each.name} ({IDLE})", amounts=_rest(whole.amounts, shares.values())))
    return rows


def _share(
    own: History, piece: Piece, jobs: Sequence[Job], span: tuple[datetime, datetime], shares: dict[str, Amounts]
) -> None:
    """Give each moment of a piece to the jobs that ran then, in equal parts."""
    start, end = max(piece.stretch.start, span[0]), min(piece.stretch.end, span[1])
    for one, other in _spans(start, end, jobs):
        running = [job for job in jobs if job.started <= one and other <= job.ended]
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


def _spans(start: datetime, end: datetime, jobs: Sequence[Job]) -> Iterator[tuple[datetime, datetime]]:
    """The span, cut wherever a job begins or ends."""
    if start >= end:
        return
    cuts = {moment for job in jobs for moment in (job.started, job.ended) if start < moment < end}
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
