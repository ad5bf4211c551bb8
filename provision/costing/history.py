"""The cost history of one machine: when it was on, at which price, and how long its disk and public IP existed."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from itertools import chain, pairwise

from gpuinfra.models.base import MAX_DURATION
from gpuinfra.models.cost import Amounts, Certainty, Source, least_certain
from gpuinfra.models.receipt import LedgerEntry, LedgerEntryKind
from gpuinfra.provision.costing.timeline import (
    Facts,
    FactsTimeline,
    Pricing,
    Sample,
    StateChange,
    Stretch,
    Turn,
    merged,
    on_stretches,
    there_stretches,
)
from gpuinfra.provision.lease import BACKSTOP

_BEGINNINGS = frozenset({LedgerEntryKind.ON, LedgerEntryKind.CHANGED})
_START_LIMIT = timedelta(minutes=10)
"""The longest time between the request, as in the ledger, and the start of the machine, as in the log."""
_ROUNDED = timedelta(minutes=1)
"""The longest time between the end in the log and in the ledger."""
_LAG = timedelta(minutes=20)
"""How long it may take until Azure's log has an event: https://learn.microsoft.com/azure/azure-monitor/platform/activity-log"""
_NO_FACTS = Facts()
_BEFORE_ALL = datetime(1970, 1, 1, tzinfo=UTC)
SECONDS_A_MONTH = 730 * 3600
"""The length of a month in Azure's price list."""


@dataclass(frozen=True, slots=True)
class Present:
    """A machine, or its remaining resources, as Azure shows them now."""

    facts: Facts | None = None
    """None if only the disk or the public IP exists."""
    is_on: bool = False
    on_since: datetime | None = None
    lease_until: datetime | None = None
    """The end of the lease of the last time on."""
    changed: datetime | None = None
    """When Azure last changed the VM."""
    disk_per_month: float | None = None
    address_per_month: float | None = None
    created: datetime | None = None
    """When the disk was created, or the VM if the disk is unknown."""
    tags: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Piece:
    """A period of being on, at one price."""

    stretch: Stretch
    price: float | None
    facts: Facts = _NO_FACTS

    @property
    def cost(self) -> float | None:
        """US dollars, or None if no price is known."""
        seconds = (self.stretch.end - self.stretch.start).total_seconds()
        return None if self.price is None else seconds / 3600 * self.price


@dataclass(frozen=True, slots=True)
class HoldingPeriod:
    """A period of existence, with the monthly prices of disk and public IP, and the VM's hourly price."""

    stretch: Stretch
    disk_per_month: float | None
    """None if unknown; 0.0 if there was no disk."""
    address_per_month: float | None
    price: float | None
    has_vm: bool = True
    """False where only the disk or the address was there: then nothing was off, and nothing was saved."""


@dataclass(frozen=True, slots=True)
class CostHistory:
    """Everything known about the cost of one machine."""

    name: str
    key: str
    """The group and name in lower case, as in `group/name`."""
    facts: Facts
    pieces: tuple[Piece, ...]
    holdings: tuple[HoldingPeriod, ...]
    is_on: bool = False
    tags: dict[str, str] = field(default_factory=dict)

    def amounts(self, since: datetime, until: datetime) -> Amounts:
        """Return the costs in a time span."""
        found = Amounts()
        for piece in self.pieces:
            seconds = piece.stretch.seconds(since, until)
            unpriced, compute = seconds if piece.price is None else 0.0, seconds / 3600 * (piece.price or 0.0)
            if piece.stretch.is_certain:
                found += Amounts(seconds=seconds, compute=compute, unpriced=unpriced)
            else:
                found += Amounts(possible=seconds, possible_compute=compute, unpriced=unpriced)
        for holding in self.holdings:
            seconds = holding.stretch.seconds(since, until)
            if not holding.stretch.is_certain:
                found += Amounts(
                    possible_disk=seconds / SECONDS_A_MONTH * (holding.disk_per_month or 0.0),
                    possible_address=seconds / SECONDS_A_MONTH * (holding.address_per_month or 0.0),
                    disk_unpriced=seconds if holding.disk_per_month is None else 0.0,
                    address_unpriced=seconds if holding.address_per_month is None else 0.0,
                )
                continue
            found += Amounts(
                disk=seconds / SECONDS_A_MONTH * (holding.disk_per_month or 0.0),
                address=seconds / SECONDS_A_MONTH * (holding.address_per_month or 0.0),
                always_on=seconds / 3600 * (holding.price or 0.0) if holding.has_vm else 0.0,
                there=seconds if holding.has_vm else 0.0,
                disk_unpriced=seconds if holding.disk_per_month is None else 0.0,
                address_unpriced=seconds if holding.address_per_month is None else 0.0,
            )
        return found

    @property
    def last_time_on(self) -> tuple[Piece, ...]:
        """The pieces from the last power-on to its end, or until now, as far as the machine was certainly on."""
        certain = [piece for piece in self.pieces if piece.stretch.is_certain]
        found = certain[-1:]
        for piece in reversed(certain[:-1]):
            if piece.stretch.end != found[0].stretch.start:
                break
            found.insert(0, piece)
        return tuple(found)

    @property
    def since(self) -> datetime | None:
        """Since when the machine is on, or off; None if unknown."""
        last = self.last_time_on
        if not last or not self.pieces[-1].stretch.is_certain:
            return None
        return last[0].stretch.start if self.is_on else last[-1].stretch.end

    @property
    def last_cost(self) -> float | None:
        """The cost since the last power-on, or of the last time on; None if a price is unknown."""
        costs = [piece.cost for piece in self.last_time_on]
        return None if None in costs else sum(each or 0.0 for each in costs)

    def within(self, since: datetime, until: datetime) -> list[Stretch]:
        """Return the periods of being on that overlap a time span."""
        return [piece.stretch for piece in self.pieces if piece.stretch.seconds(since, until) > 0]

    def _held(self, since: datetime, until: datetime) -> list[Stretch]:
        return [each.stretch for each in self.holdings if each.stretch.seconds(since, until) > 0]

    def sources(self, since: datetime, until: datetime) -> tuple[Source, ...]:
        """Return the sources for when the machine was on, or for when it existed if it was never on."""
        found = self.within(since, until) or self._held(since, until)
        return tuple(dict.fromkeys(source for each in found for source in each.sources))

    def compute_sure(self, since: datetime, until: datetime) -> Certainty:
        """Return the certainty of the compute cost in a time span."""
        return least_certain(each.sure for each in self.within(since, until))

    def sure(self, since: datetime, until: datetime) -> Certainty:
        """Return the certainty of the total cost in a time span: compute, disk and public IP."""
        if self.amounts(since, until).missing:
            return Certainty.ESTIMATED
        return least_certain([self.compute_sure(since, until), *(each.sure for each in self._held(since, until))])


def cost_history(  # noqa: PLR0913 each source by name
    key: str,
    *,
    log: Sequence[StateChange],
    log_since: datetime | None,
    entries: Sequence[LedgerEntry],
    present: Present | None,
    now: datetime,
    pricing: Pricing,
    samples: Sequence[Sample] = (),
    seen: Sequence[datetime] = (),
    logged: Present | None = None,
    disks: Sequence[tuple[datetime, float]] = (),
) -> CostHistory:
    """Return a machine's history from the log, the ledger and the current state. `log_since` is None without a log.

    `samples` are the VM's properties over time, from the log. `entries` are this machine's ledger entries, oldest
    first. `seen` are other times at which it was on. `logged` has the disk and the tags in its last write in the log,
    and `disks` the monthly price of its disk in each write.
    """
    ended = _in_turn(_as_started(entries))
    limits = _Limits(ended, present, seen)
    known = merged(log, _changes(ended, limits), log_since)
    if log_since is not None:
        known = _with_tag(known, present, log_since)
        known = _at_log_begin(known, log, log_since, limits, samples)
    elif present:
        known = _with_tag(known, present, now)
    known = _until(now, [*known, *_ending(known, present, log_since, limits, now)])
    facts = FactsTimeline(samples, ledger_samples(entries), _present_sample(present, entries, samples, now), log_since)
    on = on_stretches(known, now)
    name = entries[-1].machine if entries else key.rsplit("/", 1)[-1]
    return CostHistory(
        name=name,
        key=key,
        facts=facts.latest(),
        pieces=tuple(piece for stretch in on for piece in _pieces(stretch, facts, pricing)),
        holdings=tuple(
            _with_disk_changes(_holdings(known, entries, present, logged, facts, pricing, now), entries, disks)
        ),
        is_on=present is not None and present.is_on,
        tags=next((each.tags for each in (present, *reversed(entries), logged) if each and each.tags), {}),
    )


def _until(now: datetime, changes: Iterable[StateChange]) -> list[StateChange]:
    """Return the changes in order of time, none after `now`. Azure's clocks may be ahead of the one that gave `now`."""
    found = (replace(each, at=min(each.at, now)) for each in changes)
    return sorted(found, key=lambda change: change.at)


@dataclass(frozen=True)
class _Limits:
    """How long a machine can have been on after a power-on whose end is not known."""

    entries: Sequence[LedgerEntry]
    present: Present | None
    seen: Sequence[datetime]

    def earliest(self, since: datetime, before: datetime) -> datetime:
        """Return when the machine was last known to be on."""
        ends = [each for each in self.entries if each.what not in _BEGINNINGS and each.since]
        if any(each.since == since and each.at >= before - _ROUNDED for each in ends):
            return before  # a command saw it on, and stopped it
        changed = (entry.at for entry in self.entries if entry.what in _BEGINNINGS)
        return max([since, *(each for each in (*changed, *self.seen) if since <= each < before)])

    def latest(self, since: datetime, before: datetime) -> datetime:
        """Return the end of the lease, with the time until Azure's schedule stops the machine; at most `before`."""
        entries = [each for each in self.entries if since - _START_LIMIT <= each.at < before]
        leases = [each.lease_until for each in entries if each.lease_until and each.lease_until > since]
        present = self.present
        if present and present.lease_until and present.on_since and abs(present.on_since - since) <= _START_LIMIT:
            leases.append(present.lease_until)
        if not leases:
            return before
        # A run that was on the machine renewed the lease, for as long as it was at first.
        last = self.earliest(since, before)
        return min(before, max(*leases, last + (leases[0] - since)) + BACKSTOP)


def _with_tag(known: Sequence[StateChange], present: Present | None, before: datetime) -> list[StateChange]:
    """Return the changes with the power-on in the machine's tag, if it was earlier than `before` and is not known."""
    since = present.on_since if present and present.facts else None
    if since is None or since >= before or any(_is_as_late(each, since) for each in known):
        return list(known)
    return sorted([*known, StateChange(since, Turn.ON, Source.AZURE)], key=lambda change: change.at)


def _is_as_late(change: StateChange, since: datetime) -> bool:
    return change.at >= since - _START_LIMIT and (change.source is Source.LEDGER or change.turn is Turn.ON)


def _at_log_begin(
    known: Sequence[StateChange],
    log: Sequence[StateChange],
    log_since: datetime,
    limits: _Limits,
    samples: Sequence[Sample],
) -> list[StateChange]:
    """Return the changes with what is unknown about the time before the log.

    The first change in the log does not show the state before it: Azure also logs a deallocation of a machine that is
    off, which its daily schedule requests each day.
    """
    if not log or log[0] not in known:
        return list(known)
    first, place = log[0], list(known).index(log[0])
    before, rest = list(known[:place]), list(known[place + 1 :])
    last = next((each for each in reversed(before) if each.turn is not Turn.BORN), None)
    if last is None and first.turn is Turn.OFF:
        # A lease ends after 30 days at most, unless a change of the tags renews it.
        written = max([log_since, *(each.at for each in samples if log_since <= each.at <= first.at)])
        latest = min(first.at, written + MAX_DURATION + BACKSTOP)
        began = StateChange(log_since, Turn.ON, Source.LOG, guessed=True)
        return [*before, began, replace(first, at=latest, earliest=log_since, guessed=True), *rest]
    if last is None or last.turn is not Turn.ON or last.at >= log_since:
        return list(known)
    earliest = limits.earliest(last.at, first.at)
    latest = max(earliest, limits.latest(last.at, first.at))
    if earliest >= log_since and first.turn is Turn.OFF:
        return list(known)
    ended = StateChange(latest, Turn.OFF, first.source, guessed=True, earliest=earliest)
    return [*before, ended, *([] if first.turn is Turn.OFF else [first]), *rest]


def _as_started(entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """Return the entries with each beginning moved to the actual start, if the entry for its end has that.

    `up` records the time of its request. `down` records the start from Azure's log, seconds to minutes later.
    """
    asked = sorted(entry.at for entry in entries if entry.what in _BEGINNINGS)
    started = dict[datetime, datetime]()
    for start in (entry.since for entry in entries if entry.what not in _BEGINNINGS and entry.since):
        before = [each for each in asked if each <= start <= each + _START_LIMIT]
        if before:
            started[before[-1]] = start
    return [replace(e, at=started.get(e.at, e.at)) if e.what in _BEGINNINGS else e for e in entries]


def _in_turn(entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """Return the entries with every end before the next beginning.

    `down` records the end once it has verified that the machine is off. If `up` requested the machine again before
    that, the end belongs to the previous time on, which was over when the next one began.
    """
    begun = {entry.at for entry in entries if entry.what is LedgerEntryKind.ON}
    known = {entry.at for entry in entries if entry.what in _BEGINNINGS}
    found = list[tuple[datetime, bool, LedgerEntry]]()
    for entry in entries:
        after = {each for each in begun if entry.since and entry.since < each <= entry.at}
        is_late = entry.what not in _BEGINNINGS and entry.since in known and bool(after)
        at = min(after) if is_late else entry.at
        found.append((at, not is_late, replace(entry, at=at)))
    return [entry for _, _, entry in sorted(found, key=lambda each: each[:2])]


def _changes(entries: Iterable[LedgerEntry], limits: _Limits) -> Iterator[StateChange]:
    """Return the ledger's power changes. An end also gives its beginning, and a beginning ends the time before."""
    begun: LedgerEntry | None = None
    moments = set[datetime]()
    for entry in entries:
        since = entry.at if entry.what in _BEGINNINGS else entry.since
        is_same = begun is not None and (entry.what is LedgerEntryKind.CHANGED or since in moments)
        moments = {*moments, entry.at} if is_same else {entry.at}
        if begun and not is_same:
            # Another client switched it off, at an unknown time.
            end = since or entry.at
            earliest = limits.earliest(begun.at, end)
            latest = max(earliest, limits.latest(begun.at, end))
            yield StateChange(latest, Turn.OFF, Source.LEDGER, guessed=True, earliest=earliest)
        if since:
            yield StateChange(since, Turn.ON, Source.LEDGER)
        if entry.what in _BEGINNINGS:
            begun = entry if begun is None or not is_same else begun
            continue
        if since:
            yield StateChange(entry.at, Turn.OFF, Source.LEDGER)
        begun = None
        if entry.what is LedgerEntryKind.GONE:
            yield StateChange(entry.at, Turn.GONE, Source.LEDGER)


def _ending(
    known: Sequence[StateChange], present: Present | None, log_since: datetime | None, limits: _Limits, now: datetime
) -> Iterator[StateChange]:
    """Return the changes that must have happened since the last known one to reach the current state."""
    last = next((change for change in reversed(known) if change.turn is not Turn.BORN), None)
    seems_on = last is not None and last.turn is Turn.ON
    is_on = present is not None and present.is_on
    is_logged = log_since is not None and last is not None and last.source is Source.LOG
    if is_on and not seems_on and present is not None:
        yield _start(last, present, now, is_logged=is_logged)
    elif seems_on and not is_on and last is not None:
        yield _end(last, present, limits, now, is_logged=is_logged)
    if present is None and known and known[-1].turn is not Turn.GONE:
        # Nothing is left, so it was deleted at some time after its last known change.
        latest = max(known[-1].at, now if log_since is None else log_since)
        earliest = min(known[-1].earliest or known[-1].at, latest)
        if is_logged and known[-1].turn is not Turn.BORN:
            earliest, latest = max(earliest, now - _LAG), now
        yield StateChange(latest, Turn.GONE, Source.AZURE, guessed=True, earliest=earliest)


def _start(last: StateChange | None, present: Present, now: datetime, *, is_logged: bool) -> StateChange:
    """Return when a machine that is on was switched on: the time in its tag, or at the latest Azure's last change."""
    after = [each for each in (present.on_since, present.changed) if each and (last is None or each > last.at)]
    at = min(after, default=now)
    if at == present.on_since:
        return StateChange(at, Turn.ON, Source.AZURE)
    first = last.at if last else present.created or at
    # What the log does not have yet happened a few minutes ago.
    first = max(first, now - _LAG) if is_logged else first
    return StateChange(at, Turn.ON, Source.AZURE, guessed=True, earliest=min(first, at))


def _end(last: StateChange, present: Present | None, limits: _Limits, now: datetime, *, is_logged: bool) -> StateChange:
    """Return when a machine that is off was switched off, after it was last known to be on."""
    changed = present.changed if present and present.changed and present.changed > last.at else now
    if is_logged:
        earliest, latest = max(last.at, now - _LAG), now
    else:
        latest = limits.latest(last.at, now)
        earliest = limits.earliest(last.at, latest)
    if changed >= earliest:
        latest = min(latest, changed)
    return StateChange(max(earliest, latest), Turn.OFF, Source.AZURE, guessed=True, earliest=earliest)


def ledger_samples(entries: Sequence[LedgerEntry]) -> list[Sample]:
    """Return the ledger's sizes and prices over time."""
    begun = [entry for entry in entries if entry.what in _BEGINNINGS]
    found = [Sample(entry.at, _of_entry(entry), Source.LEDGER) for entry in begun]
    for entry in entries:
        since = entry.since
        # The entry for an end has a price too, but the price at the beginning is the one that the user agreed to.
        if since and entry.size and not any(since <= each.at <= entry.at for each in begun):
            found.append(Sample(since, _of_entry(entry), Source.LEDGER))
    return sorted(found, key=lambda each: each.at)


def _of_entry(entry: LedgerEntry) -> Facts:
    return Facts(entry.size, entry.region, entry.spot, entry.price_per_hour)


def _present_sample(
    present: Present | None, entries: Sequence[LedgerEntry], logged: Sequence[Sample], now: datetime
) -> Sample | None:
    """Return the present properties, from their best known start: power-on or Azure's last change."""
    if present is None or present.facts is None:
        return None
    others = [*logged, *ledger_samples(entries)]
    if not others:
        return Sample(_BEFORE_ALL, present.facts, Source.AZURE)
    last = max(each.at for each in others)
    moments = [each for each in (present.on_since, present.changed) if each and each > last]
    return Sample(min([*moments, now]), present.facts, Source.AZURE)


def _pieces(stretch: Stretch, facts: FactsTimeline, pricing: Pricing) -> Iterator[Piece]:
    """Split a period of being on where the machine's properties changed."""
    for start, end in pairwise([stretch.start, *facts.cuts(stretch.start, stretch.end), stretch.end]):
        found, sure = facts.at(start)
        price = pricing(found)
        sure = Certainty.ESTIMATED if price is None else least_certain([stretch.sure, sure])
        yield Piece(replace(stretch, start=start, end=end, sure=sure), price, found)


def _holdings(
    known: Sequence[StateChange],
    entries: Sequence[LedgerEntry],
    present: Present | None,
    logged: Present | None,
    facts: FactsTimeline,
    pricing: Pricing,
    now: datetime,
) -> Iterator[HoldingPeriod]:
    stretches = there_stretches(known, now)
    if present and present.created:
        # Azure itself shows when the present disk was created.
        created = min(present.created, now)
        before = (each for each in stretches if each.start < created)
        stretches = [replace(each, end=min(each.end, created)) for each in before]
        stretches.append(Stretch(created, now, (Source.AZURE,)))
    gone = max((each.at for each in known if each.turn is Turn.GONE), default=now)
    without_vm = list(_without_vm(known, present, now))
    written = [entry for entry in entries if entry.disk_per_month is not None or entry.address_per_month is not None]
    in_log = logged.disk_per_month if logged else None
    for stretch in stretches:
        is_last = present is not None and stretch.end >= now
        entry = next((each for each in reversed(written) if each.at <= stretch.end), None)
        noted = (entry.disk_per_month, entry.address_per_month) if entry else (in_log, None)
        cuts = (each for each in (gone, *chain(*without_vm)) if stretch.start < each < stretch.end)
        moments = sorted({*facts.cuts(stretch.start, stretch.end), *cuts})
        for start, end in pairwise([stretch.start, *moments, stretch.end]):
            disk, address = _monthly(present, noted, is_gone=start >= gone) if is_last and present else noted
            has_vm = not any(first <= start < last for first, last in without_vm)
            price = pricing(facts.at(start)[0])
            yield HoldingPeriod(replace(stretch, start=start, end=end), disk, address, price, has_vm)


def _with_disk_changes(
    holdings: Iterable[HoldingPeriod], entries: Sequence[LedgerEntry], disks: Sequence[tuple[datetime, float]]
) -> Iterator[HoldingPeriod]:
    """Return the periods, as estimates where the disk had another price: when it was resized is not known."""
    found = list(holdings)
    prices = [*disks, *((each.at, each.disk_per_month) for each in entries if each.disk_per_month is not None)]
    for period in found:
        # A period ends where the VM changed. The disk is the same from its creation on.
        begin = min(each.stretch.start for each in found if each.disk_per_month == period.disk_per_month)
        own = {price for at, price in prices if begin - _START_LIMIT <= at <= period.stretch.end}
        if period.disk_per_month and own - {period.disk_per_month}:
            sure = least_certain([period.stretch.sure, Certainty.ESTIMATED])
            yield replace(period, stretch=replace(period.stretch, sure=sure))
        else:
            yield period


def _without_vm(
    known: Sequence[StateChange], present: Present | None, now: datetime
) -> Iterator[tuple[datetime, datetime]]:
    """Return when the VM did not exist, after it was deleted.

    If it does not exist now and no source says since when, that is from the last known change on.
    """
    gone: datetime | None = None
    for change in known:
        if change.turn is Turn.GONE:
            gone = gone or change.at
        elif gone and change.turn is not Turn.OFF:
            yield gone, change.at
            gone = None
    if present and present.facts is None:
        yield gone or (known[-1].at if known else _BEFORE_ALL), now


_PerMonth = tuple[float | None, float | None]


def _monthly(present: Present, noted: _PerMonth, *, is_gone: bool) -> _PerMonth:
    """Return the current monthly prices of disk and public IP, each None if unknown.

    Every VM has both. After the VM is deleted, only listed resources count; before that, the recorded prices apply.
    """
    found = (present.disk_per_month, present.address_per_month)
    if present.facts is not None:
        return found
    disk, address = (0.0, 0.0) if is_gone else noted
    return disk if found[0] is None else found[0], address if found[1] is None else found[1]
