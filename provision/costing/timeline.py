"""When a machine was on and what was true then, from all sources, without counting any second twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum

from gpuinfra.models.cost import Certainty, Source

_FIRST = datetime.min.replace(tzinfo=UTC)


class Turn(StrEnum):
    """A change of a machine's state."""

    BORN = "born"
    ON = "on"
    OFF = "off"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class StateChange:
    """A change of state at a certain time, with its source."""

    at: datetime
    turn: Turn
    source: Source
    guessed: bool = False
    earliest: datetime | None = None
    """If the time is not known: the change was between this time and `at`."""
    who: str = ""
    """Who caused the change, if known."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """A period in which a machine was on, or existed."""

    start: datetime
    end: datetime
    sources: tuple[Source, ...] = ()
    sure: Certainty = Certainty.EXACT
    is_certain: bool = True
    """If False, it may not have been so in all or part of the period."""

    def seconds(self, since: datetime, until: datetime) -> float:
        """Return how many seconds of the period are in a span."""
        return max(0.0, (min(self.end, until) - max(self.start, since)).total_seconds())


def merged(log: Iterable[StateChange], ledger: Iterable[StateChange], log_since: datetime | None) -> list[StateChange]:
    """Return the changes of both sources in order. If both report the same beginning or end, the log's time counts.

    The ledger has the time of the request, and the log the time when the machine was actually on. But the log may lag
    by minutes or not reach back far enough. So a change that is only in the ledger stays, unless it is a guess about a
    time that the log covers.
    """
    log = list(log)
    written = [kept for each in ledger if (kept := _before_log(each, log, log_since))]
    rank = {Source.LOG: 0, Source.LEDGER: 1, Source.AZURE: 2}
    everything = sorted((*log, *written), key=lambda change: (change.at, rank[change.source]))
    return [
        change
        for place, change in enumerate(everything)
        if not _is_reported_later(change, everything[place + 1 :], log_since)
    ]


def _before_log(change: StateChange, log: Sequence[StateChange], log_since: datetime | None) -> StateChange | None:
    """Return a guess only for the time before the log, or None if the log shows that it is wrong."""
    if log_since is None or not change.guessed or change.at < log_since:
        return change
    if change.earliest is None or change.earliest >= log_since or _starts_off(log):
        return None
    return replace(change, at=min([change.at, *(each.at for each in log[:1])]))


def _starts_off(log: Sequence[StateChange]) -> bool:
    """Return whether the first change in the log ends a time on, or repeats an end: see `CostHistory`."""
    return bool(log) and log[0].turn in {Turn.OFF, Turn.GONE}


def _is_reported_later(change: StateChange, rest: Sequence[StateChange], log_since: datetime | None) -> bool:
    """Return whether the log covers this time and reports the same change a little later."""
    if change.source is not Source.LEDGER or log_since is None or change.at < log_since:
        return False
    begins, is_created = change.turn is Turn.ON, False
    for each in rest:
        if each.turn is Turn.BORN:
            is_created = True
            continue
        if (each.turn is Turn.ON) is not begins:
            # Either the opposite change came first, or the log shows that the machine was created and never on.
            return begins and is_created and each.source is Source.LOG
        if each.source is Source.LOG and (change.turn is not Turn.GONE or each.turn is Turn.GONE):
            return True
    return False


def on_stretches(changes: Iterable[StateChange], now: datetime) -> list[Stretch]:
    """Return when the machine was on. If nothing ended the last period, it lasts until now."""
    return list(_stretches(changes, {Turn.ON}, {Turn.OFF, Turn.GONE}, now))


def there_stretches(changes: Iterable[StateChange], now: datetime) -> list[Stretch]:
    """Return when the machine existed, on or off, because its disk and public IP cost money.

    If the log lacks the creation, the machine existed before its first start, for an unknown time.
    """
    known = (replace(each, guessed=each.guessed or _starts_by_log(each)) for each in changes)
    known = (replace(each, earliest=each.earliest if each.turn is Turn.GONE else None) for each in known)
    return list(_stretches(known, {Turn.BORN, Turn.ON}, {Turn.GONE}, now))


def _starts_by_log(change: StateChange) -> bool:
    return change.turn is Turn.ON and change.source is Source.LOG


def _stretches(changes: Iterable[StateChange], begins: set[Turn], ends: set[Turn], now: datetime) -> Iterator[Stretch]:
    """Yield the certain periods, and before and after them the time in which a change with an unknown time may be."""
    began: StateChange | None = None
    last = _FIRST
    for change in changes:
        if began is None and change.turn in begins:
            began = change
            if change.earliest and (first := max(change.earliest, last)) < change.at:
                yield _possible(change, first, change.at)
        elif began is not None and change.turn in ends:
            end = min(max(began.at, change.earliest or change.at), change.at)
            if end > began.at or change.at <= began.at:
                yield _stretch(began, replace(change, at=end))
            if change.at > max(end, began.at):
                yield _possible(change, end, change.at)
            last = max(began.at, change.at)
            began = None
    if began is not None and began.at < now:
        yield _stretch(began, StateChange(now, Turn.OFF, began.source, began.guessed))


def _possible(change: StateChange, start: datetime, end: datetime) -> Stretch:
    return Stretch(start, end, (change.source,), Certainty.ESTIMATED, is_certain=False)


def _stretch(began: StateChange, ended: StateChange) -> Stretch:
    sources = tuple(dict.fromkeys((began.source, ended.source)))
    if began.guessed or ended.guessed or Source.AZURE in sources:
        sure = Certainty.ESTIMATED
    else:
        sure = Certainty.EXACT if sources == (Source.LOG,) else Certainty.RECORDED
    return Stretch(began.at, max(began.at, ended.at), sources, sure)


_END = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of a machine that decide its price."""

    size: str | None = None
    region: str | None = None
    spot: bool = False
    price: float | None = None
    """US dollars per hour, if recorded at the time."""

    def is_same_kind(self, other: Facts) -> bool:
        """Return whether both are billed by the same entry in Azure's price list."""
        return _kind(self) == _kind(other)


Pricing = Callable[[Facts], float | None]
"""A function that returns US dollars per hour, as recorded or from a price list."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The properties of a machine from a certain time on, with the source."""

    at: datetime
    facts: Facts | None
    """None for a change with unknown content."""
    source: Source
    is_new: bool = False
    """Whether the machine was created then, so that any earlier machine was another one."""


class FactsTimeline:
    """A machine's properties over time, each with its certainty.

    Azure's log shows every change and the properties after it. The ledger has the size that gpuinfra requested and the
    price at that time. Where the log does not reach, or lags, the ledger applies.
    """

    def __init__(
        self,
        log: Iterable[Sample],
        ledger: Sequence[Sample],
        present: Sample | None,
        log_since: datetime | None,
    ) -> None:
        self._log_since = log_since
        logged = sorted(log, key=lambda each: each.at)
        self._recorded = [each for each in ledger if each.facts and each.facts.price is not None]
        kept = [each for each in ledger if not _is_logged(each, logged)]
        samples = sorted([*logged, *kept], key=lambda each: each.at)
        self._known = [each for each in samples if each.facts]
        self._unknown = [each.at for each in samples if each.facts is None]
        if present and present.facts:
            self._known.append(self._from_present(present))

    def _from_present(self, present: Sample) -> Sample:
        """Return the present properties from when they began; if unchanged, they only confirm the last sample."""
        last = self._known[-1] if self._known else None
        if last is None or last.facts is None or present.facts is None:
            return present
        return replace(present, at=_END if last.facts.is_same_kind(present.facts) else max(present.at, last.at))

    def latest(self) -> Facts:
        """Return the last known properties."""
        return next((each.facts for each in reversed(self._known) if each.facts), Facts())

    def at(self, moment: datetime) -> tuple[Facts, Certainty]:
        """Return the properties at a time, with the recorded price if there is one, and their certainty."""
        facts, sure = self._at(moment)
        return self._with_price(facts, moment), sure

    def cuts(self, start: datetime, end: datetime) -> list[datetime]:
        """Return the times within a span at which the properties, the price or the certainty changed."""
        known = [*(each.at for each in (*self._known, *self._recorded)), *self._unknown]
        moments = sorted({each for each in known if start < each < end})
        found = [self.at(moment) for moment in (start, *moments)]
        return [moment for moment, before, after in zip(moments, found, found[1:], strict=False) if before != after]

    def _at(self, moment: datetime) -> tuple[Facts, Certainty]:
        before = [each for each in self._known if each.at <= moment]
        after = next((each for each in self._known if each.at > moment), None)
        if not before:
            return self._earlier(moment, after)
        last = before[-1]
        facts = last.facts or Facts()
        if last.source is Source.AZURE:
            # Without another sample, the properties did not change since the beginning of the log.
            is_proven = self._log_since is not None and len(before) == 1 and not self._unknown
            return facts, Certainty.EXACT if is_proven else Certainty.ESTIMATED
        is_same_after = after is not None and after.facts is not None and facts.is_same_kind(after.facts)
        if any(last.at < each <= moment for each in self._unknown):
            return facts, Certainty.EXACT if is_same_after else Certainty.ESTIMATED
        if last.source is Source.LEDGER:
            is_covered = self._log_since is not None and last.at >= self._log_since
            is_contradicted = any(each.source is Source.LOG for each in before)
            is_exact = (is_covered and not is_contradicted) or is_same_after
            return facts, Certainty.EXACT if is_exact else Certainty.RECORDED
        return facts, Certainty.EXACT

    def _earlier(self, moment: datetime, first: Sample | None) -> tuple[Facts, Certainty]:
        """Return the properties before the first sample: the same, unless that sample is a change."""
        if first is None or first.facts is None or first.is_new:
            return Facts(), Certainty.ESTIMATED
        is_changed = first.source is Source.LOG or any(moment < each <= first.at for each in self._unknown)
        return first.facts, Certainty.ESTIMATED if is_changed or self._log_since is None else Certainty.EXACT

    def _with_price(self, facts: Facts, moment: datetime) -> Facts:
        same = [each for each in self._recorded if each.facts and each.facts.is_same_kind(facts)]
        # The last one before this time, or the first one after it.
        found = next((each for each in reversed(same) if each.at <= moment), next(iter(same), None))
        return replace(facts, price=found.facts.price) if found and found.facts else facts


def _kind(facts: Facts) -> tuple[str, str, bool]:
    return (facts.size or "").casefold(), (facts.region or "").casefold(), facts.spot


def _is_logged(sample: Sample, log: Sequence[Sample]) -> bool:
    """Return whether the log confirms a ledger sample. The ledger has the request's time, the log the change's time."""
    if sample.facts is None:
        return True
    before = [each.facts for each in log if each.at <= sample.at]
    after = [each.facts for each in log if each.at > sample.at]
    candidates = [*before[-1:], *after]
    return any(each is not None and each.is_same_kind(sample.facts) for each in candidates)
