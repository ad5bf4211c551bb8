"""The history of one machine in money: when it was on at which price, and for how long its parts were paid for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from gpuinfra.models.cost import Amounts, Certainty, Source, least_sure
from gpuinfra.models.entry import Entry, EntryKind
from gpuinfra.provision.costing.facts import Facts, FactsTimeline, Pricing, Sample
from gpuinfra.provision.costing.timeline import Change, Stretch, Turn, merged, on_stretches, there_stretches

_BEGINNINGS = frozenset({EntryKind.ON, EntryKind.CHANGED})
_START_LIMIT = timedelta(minutes=10)
"""A machine that `up` asks for comes on within this time; the log has that moment, the ledger that of the request."""
_BEFORE_ALL = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS_A_MONTH = 730 * 3600
"""As Azure counts a month."""


@dataclass(frozen=True, slots=True)
class Present:
    """A machine as it is in Azure now, or what is left of it."""

    facts: Facts | None = None
    """None where only its disk or its address is there."""
    is_on: bool = False
    on_since: datetime | None = None
    changed: datetime | None = None
    """When Azure last did something to it."""
    disk_per_month: float | None = None
    address_per_month: float | None = None
    created: datetime | None = None
    """When its disk came to be."""
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of being on, at one price."""

    stretch: Stretch
    price: float | None

    @property
    def cost(self) -> float | None:
        """US dollars; None where no price is known."""
        seconds = (self.stretch.end - self.stretch.start).total_seconds()
        return None if self.price is None else seconds / 3600 * self.price


@dataclass(frozen=True, slots=True)
class Holding:
    """A stretch of being there, with what disk and address cost a month, and the machine an hour were it on."""

    stretch: Stretch
    disk_per_month: float
    address_per_month: float
    price: float | None


@dataclass(frozen=True, slots=True)
class History:
    """All that is known of one machine."""

    name: str
    key: str
    """Its id, without case."""
    facts: Facts
    pieces: tuple[Piece, ...]
    holdings: tuple[Holding, ...]
    is_on: bool = False
    tags: dict[str, str] = field(default_factory=dict)

    def amounts(self, since: datetime, until: datetime) -> Amounts:
        """What a span of time cost."""
        found = Amounts()
        for piece in self.pieces:
            seconds = piece.stretch.seconds(since, until)
            unpriced = seconds if piece.price is None else 0.0
            found += Amounts(seconds=seconds, compute=seconds / 3600 * (piece.price or 0.0), unpriced=unpriced)
        for holding in self.holdings:
            seconds = holding.stretch.seconds(since, until)
            found += Amounts(
                disk=seconds / SECONDS_A_MONTH * holding.disk_per_month,
                address=seconds / SECONDS_A_MONTH * holding.address_per_month,
                always_on=seconds / 3600 * (holding.price or 0.0),
                there=seconds,
            )
        return found

    @property
    def last_time_on(self) -> tuple[Piece, ...]:
        """The pieces from the last power-on to its end, or until now."""
        found = list(self.pieces[-1:])
        for piece in reversed(self.pieces[:-1]):
            if piece.stretch.end != found[0].stretch.start:
                break
            found.insert(0, piece)
        return tuple(found)

    @property
    def since(self) -> datetime | None:
        """Since when it is on, or off, as it is now; None where nothing says."""
        last = self.last_time_on
        if not last:
            return None
        return last[0].stretch.start if self.is_on else last[-1].stretch.end

    @property
    def last_cost(self) -> float | None:
        """What the time since the last power-on, or the last time on, cost; None where a price is not known."""
        costs = [piece.cost for piece in self.last_time_on]
        return None if None in costs else sum(each or 0.0 for each in costs)

    def within(self, since: datetime, until: datetime) -> list[Stretch]:
        """The stretches of being on that touch a span."""
        return [piece.stretch for piece in self.pieces if piece.stretch.seconds(since, until) > 0]

    def sources(self, since: datetime, until: datetime) -> tuple[Source, ...]:
        """Who says so."""
        return tuple(dict.fromkeys(source for each in self.within(since, until) for source in each.sources))

    def sure(self, since: datetime, until: datetime) -> Certainty:
        """How sure it is in a span."""
        return least_sure(each.sure for each in self.within(since, until))


def history(  # noqa: PLR0913 each source by name
    key: str,
    *,
    log: Sequence[Change],
    log_since: datetime | None,
    entries: Sequence[Entry],
    present: Present | None,
    now: datetime,
    pricing: Pricing,
    samples: Sequence[Sample] = (),
) -> History:
    """A machine's history, from the log, the ledger, and what is there now. `log_since` is None where there is no log.

    `samples` is what the log says of its size.

    `entries` are those of this machine alone, the oldest first.
    """
    known = merged(log, _changes(_in_turn(_as_started(entries))), log_since)
    known = _until(now, [*known, *_ending(known, entries, present, now)])
    facts = FactsTimeline(samples, ledger_samples(entries), _present_sample(present, entries, samples, now), log_since)
    on = on_stretches(known, now)
    name = entries[-1].machine if entries else key.rsplit("/", 1)[-1]
    return History(
        name=name,
        key=key,
        facts=facts.latest(),
        pieces=tuple(piece for stretch in on for piece in _pieces(stretch, facts, pricing)),
        holdings=tuple(_holdings(known, entries, present, facts, pricing, now)),
        is_on=present is not None and present.is_on,
        tags=present.tags if present and present.tags else next((e.tags for e in reversed(entries) if e.tags), {}),
    )


def _until(now: datetime, changes: Iterable[Change]) -> list[Change]:
    """Return the changes in order of time, none after `now`: Azure's clocks may be ahead of the one that said `now`."""
    return sorted((replace(each, at=min(each.at, now)) for each in changes), key=lambda change: change.at)


def _as_started(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with each beginning at the moment at which the machine came on, where its end has that.

    `up` writes the moment of its request. `down` writes the start as Azure's log has it, seconds to minutes later.
    """
    asked = sorted(entry.at for entry in entries if entry.what in _BEGINNINGS)
    started = dict[datetime, datetime]()
    for start in (entry.since for entry in entries if entry.what not in _BEGINNINGS and entry.since):
        before = [each for each in asked if each <= start <= each + _START_LIMIT]
        if before:
            started[before[-1]] = start
    return [replace(e, at=started.get(e.at, e.at)) if e.what in _BEGINNINGS else e for e in entries]


def _in_turn(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries with every end before the next beginning.

    `down` writes its end when it has seen the machine off. If `up` has asked for the machine again by then, the end
    belongs to the time before, which was over when the next one began.
    """
    begun = {entry.at for entry in entries if entry.what is EntryKind.ON}
    known = {entry.at for entry in entries if entry.what in _BEGINNINGS}
    found = list[tuple[datetime, bool, Entry]]()
    for entry in entries:
        after = {each for each in begun if entry.since and entry.since < each <= entry.at}
        is_late = entry.what not in _BEGINNINGS and entry.since in known and bool(after)
        at = min(after) if is_late else entry.at
        found.append((at, not is_late, replace(entry, at=at)))
    return [entry for _, _, entry in sorted(found, key=lambda each: each[:2])]


def _changes(entries: Iterable[Entry]) -> Iterator[Change]:
    """What the ledger says. An end tells of its beginning as well, and a beginning that it was off before."""
    begun: Entry | None = None
    moments = set[datetime]()
    for entry in entries:
        since = entry.at if entry.what in _BEGINNINGS else entry.since
        is_same = begun is not None and (entry.what is EntryKind.CHANGED or since in moments)
        moments = {*moments, entry.at} if is_same else {entry.at}
        if begun and not is_same:
            # Somebody else has ended it, at a moment that nobody here knows.
            yield Change(_lease_end(begun, since or entry.at), Turn.OFF, Source.LEDGER, guessed=True)
        if since:
            yield Change(since, Turn.ON, Source.LEDGER)
        if entry.what in _BEGINNINGS:
            begun = entry if begun is None or not is_same else begun
            continue
        if since:
            yield Change(entry.at, Turn.OFF, Source.LEDGER)
        begun = None
        if entry.what is EntryKind.GONE:
            yield Change(entry.at, Turn.GONE, Source.LEDGER)


def _lease_end(begun: Entry, latest: datetime) -> datetime:
    return min(begun.lease_until, latest) if begun.lease_until else latest


def _ending(
    known: Sequence[Change], entries: Sequence[Entry], present: Present | None, now: datetime
) -> Iterator[Change]:
    """What must have happened since the last that is known, for the machine to be as it is now."""
    last = next((change for change in reversed(known) if change.turn is not Turn.BORN), None)
    seems_on = last is not None and last.turn is Turn.ON
    is_on = present is not None and present.is_on
    if is_on and not seems_on and present is not None:
        moments = (present.on_since, present.changed)
        after = [each for each in moments if each and (last is None or each > last.at)]
        yield Change(min(after, default=now), Turn.ON, Source.AZURE)
    elif seems_on and not is_on and last is not None:
        yield Change(_latest_end(last, entries, present, now), Turn.OFF, Source.AZURE, guessed=True)
    if present is None and known and known[-1].turn is not Turn.GONE:
        # Nothing of it is there: it went at some moment after the last that is known of it.
        end = _latest_end(last, entries, present, now) if seems_on and last else known[-1].at
        yield Change(max(end, known[-1].at), Turn.GONE, Source.AZURE, guessed=True)


def _latest_end(last: Change, entries: Sequence[Entry], present: Present | None, now: datetime) -> datetime:
    """When a machine that is off by now went off at the latest: Azure's last change to it, or its lease's end."""
    if present and present.changed and present.changed > last.at:
        return present.changed
    leases = [each.lease_until for each in entries if each.lease_until and each.lease_until > last.at]
    return min([*leases, now])


def ledger_samples(entries: Sequence[Entry]) -> list[Sample]:
    """What the ledger says of its size and price, from when on."""
    begun = [entry for entry in entries if entry.what in _BEGINNINGS]
    found = [Sample(entry.at, _of_entry(entry), Source.LEDGER) for entry in begun]
    for entry in entries:
        since = entry.since
        # An end has a price too, but that of its beginning is the one that was agreed to.
        if since and entry.size and not any(since <= each.at <= entry.at for each in begun):
            found.append(Sample(since, _of_entry(entry), Source.LEDGER))
    return sorted(found, key=lambda each: each.at)


def _of_entry(entry: Entry) -> Facts:
    return Facts(entry.size, entry.region, entry.spot, entry.price_per_hour)


def _present_sample(
    present: Present | None, entries: Sequence[Entry], logged: Sequence[Sample], now: datetime
) -> Sample | None:
    """What it is now. Where nothing else says since when: since it was switched on, or since Azure's last change."""
    if present is None or present.facts is None:
        return None
    others = [*logged, *ledger_samples(entries)]
    if not others:
        return Sample(_BEFORE_ALL, present.facts, Source.AZURE)
    last = max(each.at for each in others)
    moments = [each for each in (present.on_since, present.changed) if each and each > last]
    return Sample(min([*moments, now]), present.facts, Source.AZURE)


def _pieces(stretch: Stretch, facts: FactsTimeline, pricing: Pricing) -> Iterator[Piece]:
    """A stretch, cut where the machine became another."""
    for start, end in pairwise([stretch.start, *facts.cuts(stretch.start, stretch.end), stretch.end]):
        found, sure = facts.at(start)
        price = pricing(found)
        sure = Certainty.ESTIMATED if price is None else least_sure([stretch.sure, sure])
        yield Piece(replace(stretch, start=start, end=end, sure=sure), price)


def _holdings(
    known: Sequence[Change],
    entries: Sequence[Entry],
    present: Present | None,
    facts: FactsTimeline,
    pricing: Pricing,
    now: datetime,
) -> Iterator[Holding]:
    stretches = there_stretches(known, now)
    if present and present.created:
        # Azure itself says since when the disk is there that is there now.
        created = min(present.created, now)
        before = (each for each in stretches if each.start < created)
        stretches = [replace(each, end=min(each.end, created)) for each in before]
        stretches.append(Stretch(created, now, (Source.AZURE,)))
    written = [entry for entry in entries if entry.disk_per_month is not None]
    for stretch in stretches:
        is_last = present is not None and stretch.end >= now
        entry = next((each for each in reversed(written) if each.at <= stretch.end), None)
        disk, address = (entry.disk_per_month, entry.address_per_month) if entry else (None, None)
        if is_last and present:
            disk, address = present.disk_per_month, present.address_per_month
        for start, end in pairwise([stretch.start, *facts.cuts(stretch.start, stretch.end), stretch.end]):
            part = replace(stretch, start=start, end=end)
            yield Holding(part, disk or 0.0, address or 0.0, pricing(facts.at(start)[0]))
